"""A redacted run whose process is killed: whoever carries it on has the same vault, and shows each thing once."""

import asyncio
import json

from app.infra.settings import Settings
from tests.api import TestTools
from tests.contract.test_recovery import Follower, check, ended, fleet_on, template
from tests.providers.model_server import DONE, ModelServer, chunk, sse
from tests.tools_app import Reply

__all__ = ["template"]

ON = {"enabled": True, "dictionary": [{"type": "PER", "value": "María García"}]}
ANY = {"type": "object", "properties": {}, "additionalProperties": True}
FINDS = sse(
    chunk(tool_calls=[{"index": 0, "id": "c1", "type": "function",
                       "function": {"name": "find", "arguments": '{"to":"«EMAIL_1»"}'}}]),
    chunk(finish="tool_calls"), DONE,
)  # fmt: skip


class TestAKilledProcess:
    async def test_another_one_goes_on_with_the_same_tokens(
        self, settings: Settings, template: str, test_tools: TestTools
    ) -> None:
        async with (
            ModelServer() as model,
            fleet_on(
                settings, "redaction_recovery", template, OPENAI_BASE_URL=model.base_url, OPENAI_API_KEY="sk-test"
            ) as fleet,
        ):
            doomed, survivor = await asyncio.gather(fleet.start(), fleet.start())
            api = await doomed.admin.new_workspace()
            other = survivor.api(api)
            found = {"owner": "María García", "mail": "ana@ejemplo.es"}
            find = await test_tools.host(api, "find", Reply(ending="hang"), found, parameters=ANY)
            model.play(FINDS)
            calling = await api.new_session(model="openai/x", redaction=ON)
            given = {"background": True, "input": "Soy María García, maria@ejemplo.es"}
            first = await api.post(f"/v1/sessions/{calling}/runs", given, 202)
            await find.received()
            model.play(sse(chunk("Hola «PER_"), chunk("1», y «EMAI"), end="hold"))
            writing = await api.new_session(model="openai/x", redaction=ON)
            second = await api.post(f"/v1/sessions/{writing}/runs", given, 202)
            follower = Follower(second["id"], api, other)
            await follower.saw("message.delta", 2)
            assert follower.seen[-1].data["text"] == "María García, y "

            await doomed.kill()
            answer = sse(chunk("Hola «PER_1»: «EMAIL_1»."), chunk(finish="stop"), DONE)
            model.play(answer, answer)
            for run in (first, second):
                played = await ended(other, run)
                check(played)
                assert played.run["output"] == "Hola María García: maria@ejemplo.es."
            async with asyncio.timeout(60):
                await follower.task
            shown = [event for event in follower.seen if event.type.startswith("message.")]
            last = max(at for at, event in enumerate(shown) if event.type == "message.discarded")
            text = "".join(event.data["text"] for event in shown[last:] if event.type == "message.delta")
            assert text == "Hola María García: maria@ejemplo.es."
            assert find.arguments == [{"to": "maria@ejemplo.es"}] * 2 and find.requests[0].body == find.requests[1].body
            sent = [request.json for request in model.requests]
            assert '{"owner":"«PER_1»","mail":"«EMAIL_2»"}' in [body["messages"][-1]["content"] for body in sent]
            assert "ejemplo.es" not in json.dumps(sent)
