"""Redaction over HTTP (contract, section 8; the table of its design), in both providers' wire formats."""

import json
from typing import Any

import httpx
import pytest

from app.infra.settings import Settings
from tests.api import TENANT, TestTools, call, schema
from tests.conftest import serving
from tests.contract.wires import Wire
from tests.tools_app import Reply

MARIA = {"type": "PER", "value": "María García"}
ON = {"enabled": True, "dictionary": [MARIA]}
SAID = "Soy María García, DNI 12345678Z, correo maria@ejemplo.es y tel 612 345 678."
TOKENS = "Soy «PER_1», DNI «ID_1», correo «EMAIL_1» y tel «TEL_1»."
ANY = {"type": "object", "properties": {}, "additionalProperties": True}
VALUES = ("María", "García", "12345678Z", "maria@ejemplo.es", "612 345 678", "612345678")


@pytest.fixture
async def session(wire: Wire) -> str:
    return await wire.api.new_session(redaction=ON)


async def told(wire: Wire, session: str) -> None:
    """A turn in which the user says it all."""
    await wire.play("Bien.", session=session, input=SAID)


def sent(wire: Wire) -> str:
    """All that the model was ever sent, as text."""
    return json.dumps(wire.bodies, ensure_ascii=False)


class TestATurn:
    async def test_the_model_is_sent_tokens_and_the_caller_reads_values(self, wire: Wire, session: str) -> None:
        played = await wire.play("Hola «PER_1», escribo a «EMAIL_1».", session=session, input=SAID)
        assert wire.prose()[-1] == ("user", TOKENS)
        assert played.run["output"] == "Hola María García, escribo a maria@ejemplo.es."
        assert [message["content"] for message in played.messages] == [SAID, played.run["output"]]
        assert played.of("message.completed")[0]["message"]["content"] == played.run["output"]

    @pytest.mark.parametrize("size", [1, 2, 5, 100])
    async def test_the_stream_shows_the_same_text_however_it_was_cut(self, wire: Wire, session: str, size: int) -> None:
        await told(wire, session)
        text = "Hola «PER_1», « per_1 », PER_1 y «PER\\_1»; SUPER_1, «PER_9» y « así »: «TEL_1»"
        played = await wire.play({"text": text, "chunk_chars": size, "reasoning": "Es «PER_1»."}, session=session)
        name = "María García"
        assert played.run["output"] == f"Hola {name}, {name}, {name} y {name}; SUPER_1, «PER_9» y « así »: 612 345 678"
        assert "".join(event["text"] for event in played.of("message.delta")) == played.run["output"]
        assert "".join(event["text"] for event in played.of("reasoning.delta")) == f"Es {name}."

    async def test_a_value_keeps_its_token_in_the_next_turn_in_another_process(
        self, wire: Wire, session: str, settings: Settings
    ) -> None:
        await told(wire, session)
        settings = wire.format.settings(settings, wire.server)
        async with serving(settings) as url, httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
            other = Wire(wire.format, wire.server, http, wire.api)
            played = await other.play("A «EMAIL_1» y «TEL_1b».", session=session, input="Es maria@ejemplo.es, +34612345678")
            assert other.prose()[-1] == ("user", "Es «EMAIL_1», «TEL_1b»")
            assert other.prose()[1] == ("user", TOKENS)
            assert played.run["output"] == "A maria@ejemplo.es y +34612345678."

    async def test_what_a_user_types_like_a_token_is_none(self, wire: Wire, session: str) -> None:
        await told(wire, session)
        played = await wire.play("En «LIT_1» no hay nada.", session=session, input="¿Qué hay en «PER_1»?")
        assert wire.prose()[-1] == ("user", "¿Qué hay en «LIT_1»?")
        assert played.run["output"] == "En «PER_1» no hay nada."
        assert played.messages[0]["content"] == "¿Qué hay en «PER_1»?"

    async def test_the_model_is_told_what_tokens_are_only_while_there_are_any(self, wire: Wire, session: str) -> None:
        await told(wire, session)
        assert "stand for a real value" in wire.prose()[0][1]
        await wire.play("Hi.")
        assert "stand for a real value" not in json.dumps(wire.bodies[-1])

    async def test_numbers_that_are_none_and_the_french_quotes_stay(self, wire: Wire, session: str) -> None:
        text = "El DNI 12345678A y la tarjeta 4111 1111 1111 1112 están «mal»"
        played = await wire.play("Sí, «mal».", session=session, input=text)
        assert wire.prose()[-1] == ("user", text)
        assert played.run["output"] == "Sí, «mal»."


class TestWhatStandsAroundTheConversation:
    async def test_rules_prompts_memories_and_tools_go_out_in_tokens(self, wire: Wire, test_tools: TestTools) -> None:
        api = wire.api
        await api.post("/v1/rules", {"tenant": TENANT, "content": "Trata a María García de usted."})
        note = {"tenant": TENANT, "kind": "fact", "content": "El tel de María García es 612 345 678.", "importance": 5}
        await api.post("/v1/memories", {**note, "pinned": True})
        parameters = schema((), who={"type": "string", "description": "Como maria@ejemplo.es", "enum": ["María García"]})
        search = await test_tools.host(api, "search", {}, description="Busca a María García.", parameters=parameters)
        session = await api.new_session(redaction=ON, system_prompt="Escribe a maria@ejemplo.es. «PER_1» es un texto.")
        await wire.play(call("search", {"who": "«PER_1»"}), "Hecho.", session=session, input="Hola, soy María García.")
        assert not any(value in sent(wire) for value in VALUES)
        assert "«LIT_1» es un texto" in wire.prose()[0][1]
        assert search.arguments == [{"who": "María García"}]

    async def test_the_prompt_that_would_be_sent_is_shown_in_tokens(self, wire: Wire, session: str) -> None:
        await told(wire, session)
        prompt = await wire.api.get(f"/v1/sessions/{session}/prompt?input=Ana: ana@ejemplo.es, y maria@ejemplo.es")
        shown = {part["kind"]: part["content"] for part in prompt["parts"]}
        assert shown["input"] == "Ana: «EMAIL_2», y «EMAIL_1»"
        assert shown["history"][0]["content"] == TOKENS
        await wire.play("Bien.", session=session, input="Es otra@ejemplo.es")
        assert wire.prose()[-1] == ("user", "Es «EMAIL_2»"), "the look at the prompt has stored nothing"

    async def test_an_imported_conversation_is_kept_in_tokens(self, wire: Wire, session: str) -> None:
        said = [{"role": "user", "content": SAID}, {"role": "assistant", "content": "Hola, «PER_1»."}]
        given = await wire.api.post(f"/v1/sessions/{session}/messages", {"messages": said})
        assert [message["content"] for message in given["data"]] == [SAID, "Hola, «PER_1»."]
        await wire.play("Bien.", session=session, input="¿Y bien?")
        assert wire.prose()[1:3] == [("user", TOKENS), ("assistant", "Hola, «LIT_1».")]

    async def test_a_run_without_a_session_says_it_itself(self, wire: Wire) -> None:
        body = {"tenant": TENANT, "model": wire.format.model, "redaction": ON}
        said = [
            {"role": "system", "content": "Ayuda a María García."},
            {"role": "user", "content": "Busca"},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "name": "find", "arguments": {"q": SAID}}]},
            {"role": "tool", "content": "maria@ejemplo.es", "tool_call_id": "a"},
            {"role": "user", "content": [{"type": "text", "text": SAID}]},
        ]
        wire.script("Hola «PER_1».")
        run = await wire.api.post("/v1/runs", {**body, "messages": said}, 200)
        assert run["output"] == "Hola María García."
        assert not any(value in sent(wire) for value in VALUES)
        assert (await wire.api.get(f"/v1/runs/{run['id']}"))["output"] == "Hola María García."


class TestTools:
    async def test_arguments_are_restored_at_any_depth_and_history_keeps_tokens(
        self, wire: Wire, session: str, test_tools: TestTools
    ) -> None:
        await told(wire, session)
        send = await test_tools.host(wire.api, "send", {"ok": True}, parameters=ANY)
        arguments = r'{"to":"\u00abEMAIL_1\u00bb","meta":{"tels":["« tel_1 »","x"],"n":3},"PER_1":true}'
        played = await wire.play(call("send", arguments), "Enviado a «PER_1».", session=session)
        real = {"to": "maria@ejemplo.es", "meta": {"tels": ["612 345 678", "x"], "n": 3}, "María García": True}
        assert send.arguments == [real]
        assert played.messages[1]["tool_calls"][0]["arguments"] == real
        assert played.of("tool.invoking")[0]["arguments"] == real
        assert played.calls[0]["arguments"] == real
        assert not any(value in sent(wire) for value in VALUES)

    async def test_a_result_comes_back_in_tokens(self, wire: Wire, session: str, test_tools: TestTools) -> None:
        await told(wire, session)
        real = {"items": [{"name": "María García", "tel": 612345678, "ref": 4471}], "maria@ejemplo.es": True}
        await test_tools.host(wire.api, "find", real)
        played = await wire.play(call("find"), "Es «PER_1».", session=session)
        result = '{"items":[{"name":"«PER_1»","tel":"«TEL_1b»","ref":4471}],"«EMAIL_1»":true}'
        assert wire.results() == [result]
        assert played.results == [{**real, "items": [{**real["items"][0], "tel": "612345678"}]}]
        assert played.of("tool.invoked")[0]["result"] == played.results[0]

    async def test_what_a_tool_says_of_its_results_holds(self, wire: Wire, session: str, test_tools: TestTools) -> None:
        said = {"result": {"items[].owner": "PER", "items[].desk": "DESK"}}
        await test_tools.host(wire.api, "find", {"items": [{"owner": "Zoe", "desk": "b4"}]}, redaction=said)
        played = await wire.play(call("find"), "Zoe es «PER_1», mesa «DESK_1».", session=session)
        assert wire.results() == ['{"items":[{"owner":"«PER_1»","desk":"«DESK_1»"}]}']
        assert played.run["output"] == "Zoe es Zoe, mesa b4."

    async def test_a_value_with_quotes_is_still_json(self, wire: Wire, test_tools: TestTools) -> None:
        name = 'Ana "la rubia" Díaz'
        session = await wire.api.new_session(redaction={"enabled": True, "dictionary": [{"type": "PER", "value": name}]})
        send = await test_tools.host(wire.api, "send", {"ok": True}, parameters=ANY)
        played = await wire.play(call("send", {"to": "«PER_1»"}), "A «PER_1».", session=session, input=f"Soy {name}.")
        assert send.arguments == [{"to": name}]
        assert played.run["output"] == f"A {name}."

    async def test_the_schema_is_held_against_the_values(self, wire: Wire, session: str, test_tools: TestTools) -> None:
        await wire.play("Bien.", session=session, input="Mi tel es 612345678")
        parameters = schema(("tel",), tel="integer")
        search = await test_tools.host(wire.api, "search", {"ok": True}, parameters=parameters)
        await wire.play(call("search", {"tel": "«TEL_1»"}), "Bien.", session=session)
        assert search.arguments == [{"tel": 612345678}]
        await wire.play("Bien.", session=session, input=SAID)
        played = await wire.play(call("search", {"tel": "«EMAIL_1»"}), "Bien.", session=session)
        assert played.outcomes == ["invalid"] and len(search.requests) == 1
        assert "maria@ejemplo.es" not in sent(wire)

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [({"to": "«PER_9»"}, "stands for no value"), ({"to": "«CARD_1»"}, "CARD"), ({"a": {"b": ["«KEY_1»"]}}, "KEY")],
    )
    async def test_a_call_that_must_not_be_made_is_not_and_the_model_is_told(
        self, wire: Wire, session: str, test_tools: TestTools, arguments: Any, why: str
    ) -> None:
        secret = "sk-proj-Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z"
        await wire.play("Bien.", session=session, input=f"Tarjeta 4111 1111 1111 1111, clave {secret}")
        send = await test_tools.host(wire.api, "send", {"ok": True}, parameters=ANY)
        played = await wire.play(call("send", arguments), "No puedo.", session=session)
        assert send.requests == [] and played.outcomes == ["invalid"]
        assert why in wire.results()[0]

    async def test_a_tool_may_be_allowed_a_card_or_be_given_tokens(
        self, wire: Wire, session: str, test_tools: TestTools
    ) -> None:
        await wire.play("Bien.", session=session, input="Tarjeta 4111 1111 1111 1111, soy María García")
        pay = await test_tools.host(wire.api, "pay", {}, parameters=ANY, redaction={"allow": ["CARD"]})
        tell = await test_tools.host(wire.api, "tell", {}, parameters=ANY, redaction={"arguments": "tokens"})
        deny = await test_tools.host(wire.api, "deny", {}, parameters=ANY, redaction={"arguments": "refuse"})
        given = {"card": "«CARD_1»", "who": "«PER_1»"}
        turns = [call(name, given) for name in ("pay", "tell", "deny")]
        await wire.play(*turns, "Hecho.", session=session, tools=["pay", "tell", "deny"])
        assert pay.arguments == [{"card": "4111 1111 1111 1111", "who": "María García"}]
        assert tell.arguments == [given]
        assert deny.requests == []

    async def test_errors_of_a_tool_come_in_tokens(self, wire: Wire, session: str, test_tools: TestTools) -> None:
        def refuse(request: Any) -> Any:
            return Reply(404, {"message": "No hay nadie con maria@ejemplo.es"})

        await test_tools.host(wire.api, "find", refuse)
        await test_tools.host(wire.api, "crash", Reply(500, {"trace": "maria@ejemplo.es not found"}))
        played = await wire.play(call("find"), call("crash"), "Nada.", session=session)
        assert "«EMAIL_1»" in wire.results(1)[0]
        assert "maria@ejemplo.es" in played.calls[0]["result"]["error"]
        assert "maria@ejemplo.es" in played.calls[1]["cause"]
        assert "maria@ejemplo.es" not in sent(wire)


class TestWaiting:
    async def test_an_approver_sees_values_and_what_he_edits_is_redacted(
        self, wire: Wire, session: str, test_tools: TestTools
    ) -> None:
        await told(wire, session)
        send = await test_tools.host(wire.api, "send", {"ok": 1}, parameters=ANY, requires_approval=True)
        run = await wire.run(session, call("send", {"to": "«EMAIL_1»"}), "Hecho.")
        (pending,) = run["pending"]
        assert pending["arguments"] == {"to": "maria@ejemplo.es"}
        wrong = {"decisions": [{"call_id": "call_x", "decision": "approve"}]}
        refused = await wire.api.call("POST", f"/v1/runs/{run['id']}/approvals", wrong)
        assert (refused.status_code, refused.json()["pending"][0]["arguments"]) == (409, {"to": "maria@ejemplo.es"})
        edit = {"call_id": pending["call_id"], "decision": "edit", "arguments": {"to": "ana@ejemplo.es"}}
        await wire.api.post(f"/v1/runs/{run['id']}/approvals", {"decisions": [edit]}, 200)
        played = await wire.api.ended(run["id"])
        assert played.run["status"] == "completed"
        assert played.of("run.waiting")[0]["pending"][0]["arguments"] == {"to": "maria@ejemplo.es"}
        assert send.arguments == [{"to": "ana@ejemplo.es"}]
        assert "ejemplo.es" not in sent(wire)

    async def test_a_result_from_outside_is_redacted_and_may_come_twice(self, wire: Wire, session: str) -> None:
        body = {"description": "Asks.", "parameters": ANY, "kind": "client", "redaction": {"result": {"who": "PER"}}}
        await wire.api.call("PUT", "/v1/tools/ask", body)
        run = await wire.run(session, call("ask"), "Es «PER_1», «EMAIL_1».")
        given = {"call_id": run["pending"][0]["call_id"], "result": {"who": "Zoe", "mail": "zoe@ejemplo.es"}}
        for _ in range(2):
            await wire.api.post(f"/v1/runs/{run['id']}/tool-results", {"results": [given]}, 200)
        played = await wire.api.ended(run["id"])
        assert wire.results() == ['{"who":"«PER_1»","mail":"«EMAIL_1»"}']
        assert played.run["output"] == "Es Zoe, zoe@ejemplo.es."
        assert played.results == [given["result"]]


class TestAnswersOfAShape:
    async def test_the_answer_is_judged_and_given_with_its_values(self, wire: Wire, session: str) -> None:
        await told(wire, session)
        wanted = {**schema(("mail", "tel"), mail={"type": "string", "format": "email"}), "additionalProperties": True}
        wanted["properties"]["tel"] = {"type": "string", "pattern": "^[0-9 ]+$"}
        answers = ['{"mail":"«EMAIL_1»","tel":"«PER_1»"}', '{"mail":"«EMAIL_1»","tel":"«TEL_1»"}']
        played = await wire.play(*answers, session=session, response_schema=wanted)
        assert played.run["output_parsed"] == {"mail": "maria@ejemplo.es", "tel": "612 345 678"}
        assert not any(value in sent(wire) for value in VALUES)
