"""Redaction at rest and beside the run: what is kept, who may open it, what fails, agents, summaries and memories."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.infra.database import Database
from app.infra.settings import Settings, SettingsError, read_settings
from app.memories.distillations import Trigger
from app.process import open_process
from app.redaction.redactor import Redactor
from app.sources import always
from tests.api import TENANT, Api, TestTools, schema
from tests.conftest import serving
from tests.contract.summing import Model, says
from tests.providers.model_server import DONE, Answer, chunk, sse

MARIA = {"type": "PER", "value": "María García", "aliases": ["la jefa"]}
ON = {"enabled": True, "dictionary": [MARIA]}
SAID = "Soy María García, correo maria@ejemplo.es."
TOKENS = "Soy «PER_1», correo «EMAIL_1»."
ANY = {"type": "object", "properties": {}, "additionalProperties": True}


def calls(name: str, arguments: dict[str, Any]) -> Answer:
    """A turn of the model that calls one tool."""
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    made = {"index": 0, "id": "c1", "type": "function", "function": function}
    return sse(chunk(None, role="assistant", tool_calls=[made]), chunk(finish="tool_calls"), DONE)


def asks(body: Any) -> str:
    """The last thing that the model was told."""
    said: str = body["messages"][-1]["content"]
    return said


@pytest.fixture(scope="module")
async def there(settings: Settings, base_url: str) -> AsyncIterator[tuple[httpx.AsyncClient, Settings, Model]]:
    async with Model(lambda body: "Fine.") as chat:
        changed = settings.model_copy(update={"openai_base_url": chat.base_url, "model": "openai/chat"})
        async with serving(changed) as url, httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
            yield client, changed, chat


@pytest.fixture
def chat(there: tuple[httpx.AsyncClient, Settings, Model]) -> Model:
    model = there[2]
    model.requests.clear()
    model.reply = lambda body: "Hola «PER_1»."
    return model


@pytest.fixture
def spoken(there: tuple[httpx.AsyncClient, Settings, Model], chat: Model, api: Api) -> Api:
    return Api(there[0], api.key, api.workspace_id)


@pytest.fixture
def settled(there: tuple[httpx.AsyncClient, Settings, Model]) -> Settings:
    return there[1]


@pytest.fixture
async def lab(spoken: Api, chat: Model) -> Api:
    """With `lab/chat`, the same model for whichever process finds a run due."""
    body = {"kind": "openai", "base_url": chat.base_url, "api_key": "key-of-the-lab"}
    assert (await spoken.call("PUT", "/v1/providers/lab", body)).status_code == 201
    return spoken


@asynccontextmanager
async def one_more(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """Another process of the service."""
    async with serving(settings) as url, httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
        yield http


async def session_of(api: Api, **fields: Any) -> str:
    return await api.new_session(**{"model": "openai/chat", "redaction": ON, **fields})


async def say(api: Api, session: str, text: str = SAID, status: int = 200, **fields: Any) -> Any:
    return await api.post(f"/v1/sessions/{session}/runs", {"input": text, **fields}, status)


class TestTheField:
    async def test_it_is_shown_to_the_service_and_its_dictionary_stands_nowhere_in_clear(
        self, spoken: Api, migrated: Database
    ) -> None:
        session = await session_of(spoken)
        shown = (await spoken.get(f"/v1/sessions/{session}"))["redaction"]
        assert shown == {"enabled": True, "entities": None, "dictionary": [MARIA]}
        kept = await migrated.pool.fetchval("SELECT redaction::text FROM sessions WHERE id = $1", session)
        assert "García" not in kept and "jefa" not in kept
        await say(spoken, session)
        request = await migrated.pool.fetchval("SELECT request::text FROM runs WHERE session_id = $1", session)
        assert "García" not in request and "jefa" not in request

    async def test_a_client_token_sees_no_dictionary(self, spoken: Api) -> None:
        session = await session_of(spoken)
        made = await spoken.post(f"/v1/sessions/{session}/tokens", {})
        shown = await spoken.with_key(made["token"]).get(f"/v1/sessions/{session}")
        assert shown["redaction"] == {"enabled": True, "entities": None, "dictionary": []}

    @pytest.mark.parametrize(
        "wrong",
        [{"entities": ["NAME"]}, {"entities": ["LIT"]}, {"dictionary": [{"type": "LIT", "value": "x"}]}, {"off": True},
         {"dictionary": [{"type": "per", "value": "x"}]}, {"dictionary": [{"type": "PER", "value": "--"}]}],
    )  # fmt: skip
    async def test_a_wrong_one_is_refused(self, spoken: Api, wrong: Any) -> None:
        answer = await spoken.call("POST", "/v1/sessions", {"tenant": TENANT, "redaction": wrong})
        assert answer.status_code == 422

    @pytest.mark.parametrize("wrong", [{"arguments": "show"}, {"allow": ["LIT"]}, {"result": {"a": "no label"}}, {"x": 1}])
    async def test_a_wrong_one_of_a_tool_is_refused(self, spoken: Api, wrong: Any) -> None:
        body = {"description": "d", "parameters": ANY, "kind": "client", "redaction": wrong}
        assert (await spoken.call("PUT", "/v1/tools/t", body)).status_code == 422

    async def test_a_run_may_name_more_and_switch_it_on(self, spoken: Api, chat: Model) -> None:
        session = await spoken.new_session(model="openai/chat")
        extra = {"enabled": True, "dictionary": [{"type": "PER", "value": "Zoe Díaz"}]}
        await say(spoken, session, "Soy Zoe Díaz", redaction=extra)
        await say(spoken, session, "Soy Zoe Díaz de zoe@ejemplo.es")
        assert [asks(body) for body in chat.bodies] == ["Soy «PER_1»", "Soy «PER_1» de «EMAIL_1»"]

    async def test_only_the_wanted_kinds_and_the_dictionary_are_looked_for(self, spoken: Api, chat: Model) -> None:
        session = await session_of(spoken, redaction={**ON, "entities": ["IBAN"]})
        await say(spoken, session, "La jefa: maria@ejemplo.es, ES91 2100 0418 4502 0005 1332")
        assert asks(chat.bodies[0]) == "«PER_1»: maria@ejemplo.es, «IBAN_1»"

    async def test_it_cannot_be_switched_off_where_tokens_stand(self, spoken: Api, chat: Model) -> None:
        session = await session_of(spoken)
        off = {"redaction": {"enabled": False}}
        assert (await spoken.call("PATCH", f"/v1/sessions/{session}", off)).status_code == 200
        await say(spoken, session)
        assert asks(chat.bodies[0]) == SAID
        await spoken.call("PATCH", f"/v1/sessions/{session}", {"redaction": ON})
        await say(spoken, session)
        refused = await spoken.call("PATCH", f"/v1/sessions/{session}", off)
        assert (refused.status_code, refused.json()["code"]) == (409, "redaction_in_use")
        assert "María" not in json.dumps(chat.bodies[1]["messages"], ensure_ascii=False), (
            "what was said before goes in tokens"
        )

    async def test_an_agent_says_it_for_its_sessions_and_runs(self, spoken: Api, chat: Model) -> None:
        agent = await spoken.post("/v1/agents", {"name": "a", "system_prompt": "Ayuda a la jefa.", "redaction": ON})
        assert agent["redaction"]["dictionary"] == [MARIA]
        session = await spoken.new_session(agent_id=agent["id"], model="openai/chat")
        run = await say(spoken, session)
        assert [message["content"] for message in chat.bodies[0]["messages"]][1:] == [TOKENS]
        assert "jefa" not in json.dumps(chat.bodies) and run["output"] == "Hola María García."


class TestTheSetting:
    async def test_it_holds_for_everything_and_its_dictionary_too(
        self, settled: Settings, chat: Model, api: Api, migrated: Database
    ) -> None:
        words = {"redaction_enabled": True, "redaction_dictionary": json.dumps([{"type": "ORG", "value": "Acme"}])}
        async with one_more(settled.model_copy(update=words)) as http:
            there = Api(http, api.key, api.workspace_id)
            run = await there.post("/v1/runs", {"tenant": TENANT, "input": "Acme: maria@ejemplo.es"}, 200)
            await there.post("/v1/runs", {"tenant": TENANT, "input": "Acme", "redaction": {"enabled": False}}, 200)
        assert [asks(body) for body in chat.bodies] == ["«ORG_1»: «EMAIL_1»", "Acme"]
        assert await migrated.pool.fetchval("SELECT vault FROM runs WHERE id = $1", run["id"]) == run["id"]

    @pytest.mark.parametrize(
        ("name", "value"),
        [("ENTITIES", "PER,NAME"), ("DICTIONARY", "[1]"), ("DICTIONARY", "{"), ("DICTIONARY", '[{"type":"x","value":"y"}]')],
    )
    def test_a_wrong_one_stops_the_start_and_names_itself(self, name: str, value: str) -> None:
        with pytest.raises(SettingsError, match=f"RONDO_REDACTION_{name}"):
            always(read_settings({f"RONDO_REDACTION_{name}": value}))

    async def test_without_a_key_nothing_starts(self, settings: Settings) -> None:
        on = settings.model_copy(update={"redaction_enabled": True, "encryption_keys": None})
        with pytest.raises(SettingsError, match="RONDO_ENCRYPTION_KEYS"):
            async with open_process(on):
                pass


class TestKeys:
    async def test_a_new_first_key_takes_over_and_without_the_old_one_nothing_is_read(
        self, spoken: Api, settled: Settings, chat: Model, migrated: Database
    ) -> None:
        session = await session_of(spoken)
        run = await say(spoken, session)
        wrapped = "SELECT sealed_key FROM vault_keys WHERE owner = $1"
        before = await migrated.pool.fetchval(wrapped, session)
        new = "new:" + base64.b64encode(b"n" * 32).decode()

        async def asked(keys: str, reply: str) -> Any:
            async with one_more(settled.model_copy(update={"encryption_keys": keys})) as http:
                other = Api(http, spoken.key, spoken.workspace_id)
                if reply == "read":
                    return await other.get(f"/v1/runs/{run['id']}")
                return await say(other, session, "maria@ejemplo.es", redaction={})

        chat.requests.clear()
        failed = await asked(new, "say")
        assert (failed["status"], failed["error"]["code"]) == ("failed", "redaction_failed")
        assert (await asked(new, "read"))["output"] == "Hola «PER_1»."
        assert chat.bodies == []
        await migrated.pool.execute("UPDATE sessions SET redaction = NULL WHERE id = $1", session)
        again = await asked(f"{new},{settled.encryption_keys}", "say")
        assert again["output"] == "Hola María García." and asks(chat.bodies[-1]) == "«EMAIL_1»"
        assert await migrated.pool.fetchval(wrapped, session) != before
        assert (await asked(new, "read"))["output"] == "Hola María García."

    async def test_a_value_moved_to_another_row_opens_nothing(self, spoken: Api, chat: Model, migrated: Database) -> None:
        session = await session_of(spoken)
        run = await say(spoken, session)
        swap = "UPDATE vault_entries SET label = 'ID' WHERE owner = $1 AND label = 'PER'"
        await migrated.pool.execute(swap, session)
        assert (await spoken.get(f"/v1/runs/{run['id']}"))["output"] == "Hola «PER_1»."
        failed = await say(spoken, session)
        assert failed["error"]["code"] == "redaction_failed" and len(chat.bodies) == 1


class TestForgetting:
    @pytest.mark.parametrize("how", ["session", "scope"])
    async def test_with_the_session_goes_all_that_its_tokens_stood_for(
        self, spoken: Api, chat: Model, migrated: Database, how: str
    ) -> None:
        member = {"type": "agent", "id": "of-" + how}
        session = await session_of(spoken, member=member)
        await say(spoken, session)
        alone = await spoken.post("/v1/runs", {"tenant": TENANT, "member": member, "input": SAID, "redaction": ON}, 200)
        path = f"/v1/sessions/{session}" if how == "session" else f"/v1/data?member=agent:{member['id']}"
        assert (await spoken.call("DELETE", path)).status_code < 300
        left = await migrated.pool.fetch("SELECT owner FROM vault_entries WHERE owner = ANY($1)", [session, alone["id"]])
        assert {row["owner"] for row in left} == (set() if how == "scope" else {alone["id"]})

    async def test_an_export_has_values(self, spoken: Api, chat: Model) -> None:
        member = {"type": "agent", "id": "exported"}
        await say(spoken, await session_of(spoken, member=member))
        exported = await spoken.get("/v1/data?member=agent:exported")
        assert {message["content"] for message in exported["data"]["messages"]} == {SAID, "Hola María García."}
        assert exported["data"]["runs"][0]["output"] == "Hola María García."


class TestFailingClosed:
    async def test_a_text_that_is_too_long_fails_the_run_before_the_model_is_asked(
        self, spoken: Api, chat: Model, migrated: Database
    ) -> None:
        session = await session_of(spoken)
        run = await say(spoken, session, "maria@ejemplo.es " + "x" * 200_000)
        assert (run["status"], run["error"]["code"]) == ("failed", "redaction_failed")
        assert chat.bodies == [] and await spoken.messages(session) == []
        kept = await migrated.pool.fetchval("SELECT request::text FROM runs WHERE id = $1", run["id"])
        assert "ejemplo" not in kept
        assert (await say(spoken, session))["status"] == "completed"

    async def test_a_detector_that_raises_fails_the_run(
        self, spoken: Api, chat: Model, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        session = await session_of(spoken)
        with monkeypatch.context() as patched:
            patched.setattr(Redactor, "redact_all", lambda *a, **k: 1 / 0)
            run = await say(spoken, session)
        assert run["error"]["code"] == "redaction_failed" and chat.bodies == []
        assert [event.type for event in await spoken.events(run["id"])][-1] == "run.failed"

    async def test_a_result_that_cannot_be_redacted_ends_the_run(
        self, spoken: Api, chat: Model, test_tools: TestTools
    ) -> None:
        await test_tools.host(spoken, "find", {"text": "y" * 200_001})
        session = await session_of(spoken)
        chat.reply = lambda body: calls("find", {})
        run = await say(spoken, session)
        assert run["error"]["code"] == "redaction_failed" and len(chat.bodies) == 1

    async def test_a_result_from_outside_that_cannot_be_redacted_is_refused(self, spoken: Api, chat: Model) -> None:
        await spoken.call("PUT", "/v1/tools/ask", {"description": "d", "parameters": ANY, "kind": "client"})
        chat.reply = lambda body: calls("ask", {}) if body["messages"][-1]["role"] == "user" else "Bien."
        run = await say(spoken, await session_of(spoken))
        given = {"call_id": run["pending"][0]["call_id"], "result": "z" * 200_001}
        path = f"/v1/runs/{run['id']}/tool-results"
        refused = await spoken.call("POST", path, {"results": [given]})
        assert (refused.status_code, refused.json()["code"]) == (422, "redaction_failed")
        done = await spoken.post(path, {"results": [{**given, "result": "maria@ejemplo.es"}]}, 200)
        assert done["id"] == run["id"]
        assert (await spoken.ended(run["id"])).run["output"] == "Bien."


class TestAgents:
    async def test_an_event_s_payload_is_kept_and_sent_in_tokens(self, lab: Api, chat: Model, migrated: Database) -> None:
        fields = {"event_triggers": ["saved"], "model": "lab/chat", "redaction": ON, "config": {}, "debounce_seconds": 0}
        await lab.post("/v1/agents", {"name": "a", "system_prompt": "Mira.", **fields})
        fired = await lab.trigger(payload={"owner": "María García", "mail": "maria@ejemplo.es"})
        played = await lab.ended(fired["fired"][0]["run_id"])
        assert played.run["output"] == "Hola María García."
        assert '{"owner":"«PER_1»","mail":"«EMAIL_1»"}' in asks(chat.bodies[0])
        kept = await migrated.pool.fetchval("SELECT request::text FROM runs WHERE id = $1", played.run["id"])
        assert "ejemplo" not in kept and "García" not in kept

    async def test_many_events_at_once_do_not_wait_for_each_other_for_ever(self, lab: Api, chat: Model) -> None:
        fields = {"event_triggers": ["saved"], "model": "lab/chat", "redaction": ON, "debounce_seconds": 0}
        await lab.post("/v1/agents", {"name": "a", "system_prompt": "Mira.", **fields})
        fired = await asyncio.gather(*(lab.trigger(payload={"mail": f"u{at}@ejemplo.es"}) for at in range(30)))
        for one in fired:
            played = await lab.ended(one["fired"][0]["run_id"])
            assert played.run["status"] == "completed", played.model_calls

    async def test_of_joined_events_the_last_one_s_values_are_known(self, lab: Api, chat: Model) -> None:
        fields = {"event_triggers": ["saved"], "model": "lab/chat", "redaction": ON, "debounce_seconds": 2}
        await lab.post("/v1/agents", {"name": "a", "system_prompt": "Mira.", **fields})
        chat.reply = lambda body: "A «EMAIL_1»."
        first = await lab.trigger(payload={"mail": "ana@ejemplo.es"})
        await lab.trigger(payload={"mail": "zoe@ejemplo.es"})
        played = await lab.ended(first["fired"][0]["run_id"])
        assert played.run["output"] == "A zoe@ejemplo.es."
        shown = "".join(event["text"] for event in played.of("message.delta"))
        assert shown == played.run["output"]

    async def test_a_child_shares_its_parent_s_vault(self, lab: Api, chat: Model, migrated: Database) -> None:
        await lab.post("/v1/agents", {"name": "helper", "system_prompt": "Eres quien ayuda.", "model": "lab/chat"})

        def reply(body: Any) -> Any:
            if "ayuda" in body["messages"][0]["content"]:
                return "Hecho: «EMAIL_1»."
            if body["messages"][-1]["role"] == "user":
                return calls("agent_helper", {"task": "Escribe a «EMAIL_1» y a nadie más."})
            return "Sí, «EMAIL_1»."

        chat.reply = reply
        session = await session_of(lab, model="lab/chat")
        run = await say(lab, session, tools=["agent:helper"])
        (child,) = (await lab.get(f"/v1/runs?parent_run_id={run['id']}"))["data"]
        assert (run["output"], child["output"]) == ("Sí, maria@ejemplo.es.", "Hecho: maria@ejemplo.es.")
        assert asks(chat.bodies[1]) == "Escribe a «EMAIL_1» y a nadie más."
        assert '"output":"Hecho: «EMAIL_1»."' in asks(chat.bodies[2])
        assert await migrated.pool.fetchval("SELECT vault FROM runs WHERE id = $1", child["id"]) == session
        assert "ejemplo" not in json.dumps(chat.bodies)


class TestSummariesAndMemories:
    async def test_a_summary_is_made_of_tokens_and_kept_in_them(
        self, spoken: Api, chat: Model, settled: Settings, migrated: Database
    ) -> None:
        history = {"keep_recent_turns": 1, "summary_model": "openai/sum"}
        session = await session_of(spoken, history=history)
        for _ in range(3):
            await say(spoken, session)
        chat.requests.clear()
        chat.reply = lambda body: "Habla « per_1 »." if body["model"] == "sum" else "A «PER_1»."
        await spoken.post(f"/v1/sessions/{session}/compress", {}, 202)
        async with open_process(settled) as process:
            await process.compressor.compress(session)
        summary = await migrated.pool.fetchval("SELECT summary FROM compressions WHERE session_id = $1", session)
        assert summary == "Habla «PER_1»."
        assert "stand for a real value" in chat.bodies[0]["messages"][0]["content"] and TOKENS in asks(chat.bodies[0])
        assert (await say(spoken, session))["output"] == "A María García."
        assert "ejemplo.es" not in json.dumps(chat.bodies)

    async def test_what_is_remembered_is_kept_in_clear(self, spoken: Api, chat: Model) -> None:
        note = {"text": "María García prefiere maria@ejemplo.es.", "kind": "preference", "about": "organization"}
        wanted = {**note, "text": "«PER_1» prefiere «EMAIL_1».", "applies_to": "everyone", "importance": 3}
        replies = iter([calls("remember", wanted), "Hecho.", calls("recall", {"query": "María García prefiere"}), "Sí."])
        chat.reply = lambda body: next(replies)
        session = await session_of(spoken)
        tools = ["builtin:remember", "builtin:recall"]
        await say(spoken, session, "María García prefiere maria@ejemplo.es para todo.", tools=tools)
        kept = (await spoken.get("/v1/memories?tenant=organization:42"))["data"]
        assert [memory["content"] for memory in kept] == [note["text"]]
        await spoken.post(f"/v1/memories/{kept[0]['id']}/approve", status=200)
        await say(spoken, session, "¿Qué prefiere?", tools=tools)
        assert "«PER_1» prefiere «EMAIL_1»." in asks(chat.bodies[-1])
        assert "ejemplo.es" not in json.dumps(chat.bodies)

    async def test_what_is_distilled_is_kept_in_clear_and_drawn_from_tokens(
        self, spoken: Api, chat: Model, settled: Settings
    ) -> None:
        note = {
            "why": "said", "evidence": [1], "action": "add", "target": None, "about": "organization", "importance": 3,
            "applies_to": "everyone", "kind": "fact", "text": "«PER_1» vive en Bilbao desde enero.", "valid_until": None,
        }  # fmt: skip
        session = await session_of(spoken)
        await say(spoken, session, "Soy María García y vivo en Bilbao desde enero.")
        chat.requests.clear()
        chat.reply = lambda body: json.dumps({"notes": [note]}, ensure_ascii=False)
        async with open_process(settled) as process:
            await process.distiller.distil(session, Trigger.REQUEST)
        kept = (await spoken.get("/v1/memories?tenant=organization:42"))["data"]
        assert [memory["content"] for memory in kept] == ["María García vive en Bilbao desde enero."]
        assert "García" not in json.dumps(chat.bodies, ensure_ascii=False) and len(chat.bodies) == 1


HOOKS = r"""
from dataclasses import replace
def see(value):
    with open(PATH, "a") as file:
        file.write(repr(value) + "\n")
def before_model(messages, run):
    see(messages[-1].text)
    return [*messages[:-1], replace(messages[-1], content=messages[-1].text + " Y ana@ejemplo.es.")]
def after_model(reply, run):
    see(reply.text)
    return replace(reply, text=reply.text.replace("Hola", "Adiós"))
def before_tool(call, run):
    see(call.arguments)
def after_tool(call, result, run):
    see(result.result)
    return replace(result, result={**result.result, "mail": "zoe@ejemplo.es"})
"""


class TestHooks:
    async def test_they_see_values_and_what_they_make_is_redacted(
        self, settled: Settings, chat: Model, api: Api, test_tools: TestTools, tmp_path: Path
    ) -> None:
        seen = tmp_path / "seen"
        file = tmp_path / "hooks.py"
        file.write_text(HOOKS.replace("PATH", repr(str(seen))))
        chat.reply = lambda body: (
            calls("find", {"to": "«EMAIL_1»"}) if body["messages"][-1]["role"] == "user" else "Hola «EMAIL_3»."
        )
        async with one_more(settled.model_copy(update={"hooks": str(file)})) as http:
            hooked = Api(http, api.key, api.workspace_id)
            find = await test_tools.host(hooked, "find", {"name": "María García"}, parameters=ANY)
            session = await session_of(hooked)
            played = await hooked.played(await say(hooked, session))
        assert asks(chat.bodies[0]) == TOKENS + " Y «EMAIL_2»."
        assert find.arguments == [{"to": "maria@ejemplo.es"}]
        assert played.run["output"] == "Adiós zoe@ejemplo.es."
        shown = [event for event in played.events if event.type.startswith("message.")]
        assert shown[-2].data["text"] == played.run["output"]
        lines = seen.read_text().splitlines()
        assert lines[0] == repr(SAID) and repr({"to": "maria@ejemplo.es"}) in lines
        assert repr({"name": "María García"}) in lines and lines[-1] == repr("Hola zoe@ejemplo.es.")
        assert "ejemplo.es" not in json.dumps(chat.bodies)


class TestWithoutIt:
    async def test_nothing_of_it_is_there(self, spoken: Api, chat: Model, migrated: Database) -> None:
        session = await spoken.new_session(model="openai/chat")
        run = await say(spoken, session)
        assert (run["output"], asks(chat.bodies[0])) == ("Hola «PER_1».", SAID)
        assert await migrated.pool.fetchval("SELECT vault FROM runs WHERE id = $1", run["id"]) is None
        assert not await migrated.pool.fetchval("SELECT true FROM vault_keys WHERE owner = $1", session)


class TestTwoAtOnce:
    async def test_runs_of_two_processes_give_a_value_one_token(self, spoken: Api, chat: Model, settled: Settings) -> None:
        """Approvals on one, imports on another: here results for two calls, given to two processes at the same moment."""
        await spoken.call("PUT", "/v1/tools/ask", {"description": "d", "parameters": schema(), "kind": "client"})
        many = [f"u{number}@ejemplo.es" for number in range(40)]
        function = {"name": "ask", "arguments": "{}"}
        made = [{"index": at, "id": f"c{at}", "type": "function", "function": function} for at in range(2)]
        turn = sse(chunk(None, role="assistant", tool_calls=made), chunk(finish="tool_calls"), DONE)
        chat.reply = lambda body: turn if body["messages"][-1]["role"] == "user" else says("Bien.")
        run = await say(spoken, await session_of(spoken))
        first, second = (one["call_id"] for one in run["pending"])
        async with one_more(settled) as http:
            other = Api(http, spoken.key, spoken.workspace_id)

            def given(api: Api, call_id: str, result: list[str]) -> Any:
                body = {"results": [{"call_id": call_id, "result": result}]}
                return api.post(f"/v1/runs/{run['id']}/tool-results", body, 200)

            await asyncio.gather(given(spoken, first, many), given(other, second, many[::-1]))
            played = await spoken.ended(run["id"])
        told = [json.loads(message["content"]) for message in chat.bodies[-1]["messages"] if message["role"] == "tool"]
        assert told[0] == told[1][::-1] and len(set(told[0])) == 40
        assert played.results == [many, many[::-1]]
