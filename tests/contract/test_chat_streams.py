"""A run in the protocols of chat clients (contract, section 4, "Events"): the same log, ids and cursor in other words.

What a client of each makes of a stream is judged by `tests/events/judges.py`.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from app.infra.settings import Settings
from app.main import create_app
from tests.api import TENANT, Api, call, calls, failing, schema, wanted
from tests.contract.test_events import lose_log, rich
from tests.events.judges import AgUiClient, AiSdkClient
from tests.tools_app import Held, TestTools

SPOKEN = [("ai-sdk", 5), ("ai-sdk", 6), ("ai-sdk", 7), ("ag-ui", 0), ("ag-ui", 1)]
AI_SDK, AG_UI = SPOKEN[:3], SPOKEN[3:]
DONE = "[DONE]"


@dataclass(frozen=True)
class Frame:
    raw: bytes
    id: int | None
    data: str


@dataclass(frozen=True)
class Spoken:
    """A stream in one protocol."""

    frames: list[Frame]
    headers: httpx.Headers

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(frame.data) for frame in self.frames if frame.data != DONE]

    @property
    def raw(self) -> bytes:
        return b"".join(frame.raw for frame in self.frames)

    @property
    def types(self) -> list[str]:
        return [chunk["type"] for chunk in self.chunks]


async def frames_in(response: httpx.Response) -> AsyncIterator[Frame]:
    rest = b""
    async for received in response.aiter_raw():
        *blocks, rest = (rest + received).split(b"\n\n")
        for block in blocks:
            if block.startswith((b":", b"retry:")):
                continue
            fields = dict(line.split(": ", 1) for line in block.decode().split("\n"))
            assert set(fields) <= {"id", "data"}
            yield Frame(block + b"\n\n", int(fields["id"]) if "id" in fields else None, fields["data"])
    assert not rest


async def spoken(api: Api, method: str, path: str, body: Any = None, **headers: str) -> Spoken:
    given = {"json": body} if body is not None else {}
    async with api.http.stream(method, path, headers=api.headers(**headers), **given) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        return Spoken([frame async for frame in frames_in(response)], response.headers)


async def followed(api: Api, run_id: str, protocol: str, version: int, after: int | None = None) -> Spoken:
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    return await spoken(api, "GET", f"/v1/runs/{run_id}/events?protocol={protocol}&sdk={version}", **headers)


async def started(api: Api, session: str, script: list[Any], protocol: str, version: int, **more: Any) -> Spoken:
    body = {"input": "Hello", "script": script, "stream": True, **more}
    return await spoken(api, "POST", f"/v1/sessions/{session}/runs?protocol={protocol}&sdk={version}", body)


def judged(stream: Spoken, protocol: str, version: int) -> Any:
    client = AiSdkClient(version) if protocol == "ai-sdk" else AgUiClient(version)
    return client.read(stream.chunks)


def approval(events: list[dict[str, Any]]) -> str:
    pending: str = next(event for event in events if event["type"] == "run.waiting")["pending"][0]["call_id"]
    return pending


@pytest.fixture(params=SPOKEN, ids=lambda given: f"{given[0]}-{given[1]}")
def tongue(request: pytest.FixtureRequest) -> tuple[str, int]:
    found: tuple[str, int] = request.param
    return found


class TestARun:
    async def test_a_client_shows_what_the_run_said_and_did(
        self, api: Api, test_tools: TestTools, tongue: tuple[str, int]
    ) -> None:
        played = await rich(api, test_tools)
        client = judged(await followed(api, played.run["id"], *tongue), *tongue)
        assert client.texts == [
            event["message"]["content"] for event in played.of("message.completed") if event["message"]["content"]
        ]
        assert client.texts == ["Let me look.", "Nothing was found, I am afraid."]

    @pytest.mark.parametrize(("protocol", "version"), AI_SDK)
    async def test_the_ai_sdk_shows_steps_calls_and_reasoning(
        self, api: Api, test_tools: TestTools, protocol: str, version: int
    ) -> None:
        played = await rich(api, test_tools)
        stream = await followed(api, played.run["id"], protocol, version)
        client = judged(stream, protocol, version)
        assert stream.headers["x-vercel-ai-ui-message-stream"] == "v1"
        assert stream.frames[-1].data == DONE
        assert stream.chunks[0]["messageId"] == played.run["id"]
        assert client.finishes == ["stop"]
        assert client.metadata["finish_reason"] == "stop" and client.metadata["usage"] == played.run["usage"]
        assert client.calls == [("search", "output-available"), ("missing", "output-error"), ("search", "output-available")]
        assert [part["text"] for part in client.parts if part["type"] == "reasoning"] == ["Hm, well."]
        assert [part["type"] for part in client.parts].count("step-start") == played.run["iterations"]
        assert [chunk["data"]["streak"] for chunk in stream.chunks if chunk["type"] == "data-guard-hint"] == [2, 3]

    @pytest.mark.parametrize(("protocol", "version"), AG_UI)
    async def test_ag_ui_shows_steps_calls_and_reasoning(
        self, api: Api, test_tools: TestTools, protocol: str, version: int
    ) -> None:
        played = await rich(api, test_tools)
        stream = await followed(api, played.run["id"], protocol, version)
        client = judged(stream, protocol, version)
        assert client.outcomes == [{"type": "success"}]
        assert client.results[0]["output"] == played.run["output"]
        first = client.conversation[1]
        shown = [(one["function"]["name"], json.loads(one["function"]["arguments"])) for one in first["toolCalls"]]
        assert shown == [("search", {"q": "ñ"}), ("missing", {})]
        assert [message["role"] for message in client.conversation] == [
            "user",
            "assistant",
            "tool",
            "tool",
            "assistant",
            "tool",
            "assistant",
        ]
        assert {message["id"] for message in client.conversation} == {message["id"] for message in played.messages}
        assert client.reasoning == "Hm, well."
        assert stream.types.count("STEP_STARTED") == stream.types.count("STEP_FINISHED") == played.run["iterations"]
        assert [value["streak"] for name, value in client.custom if name == "guard.hint"] == [2, 3]

    async def test_the_post_that_starts_it_streams_it_as_it_goes(self, api: Api, tongue: tuple[str, int]) -> None:
        session = await api.new_session()
        script = [{"text": "One two three.", "chunk_chars": 3}]
        stream = await started(api, session, script, *tongue)
        assert judged(stream, *tongue).texts == ["One two three."]
        deltas = [chunk["delta"] for chunk in stream.chunks if "delta" in chunk]
        assert "".join(deltas) == "One two three."
        run_id = stream.headers["Rondo-Run"]
        again = await followed(api, run_id, *tongue)
        if tongue[0] == "ai-sdk":
            assert again.raw == stream.raw
        else:  # who comes to a run later is told the conversation first
            assert [kind for kind in again.types if kind != "MESSAGES_SNAPSHOT"] == stream.types

    async def test_a_run_of_no_session_too(self, api: Api, tongue: tuple[str, int]) -> None:
        given = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
        body = {"tenant": TENANT, "model": "scripted/x", "messages": given, "script": ["Hello."], "stream": True}
        stream = await spoken(api, "POST", f"/v1/runs?protocol={tongue[0]}&sdk={tongue[1]}", body)
        assert judged(stream, *tongue).texts == ["Hello."]
        client = judged(await followed(api, stream.headers["Rondo-Run"], *tongue), *tongue)
        assert client.texts == ["Hello."]

    async def test_values_stand_where_the_model_had_tokens(self, api: Api, tongue: tuple[str, int]) -> None:
        redaction = {"enabled": True, "dictionary": [{"type": "PER", "value": "María García"}]}
        session = await api.new_session(redaction=redaction)
        script = [failing(503, text="Hola «PE"), {"text": "Hola «PER_1».", "chunk_chars": 2}]
        stream = await started(api, session, script, *tongue, input="Soy María García")
        assert judged(stream, *tongue).texts[-1] == "Hola María García."
        assert "PER_1" not in stream.raw.decode()
        later = await followed(api, stream.headers["Rondo-Run"], *tongue)
        assert "PER_1" not in later.raw.decode()

    async def test_what_was_thought_before_a_message_was_begun_anew_is_taken_back(
        self, api: Api, tongue: tuple[str, int]
    ) -> None:
        script = [failing(503, reasoning="Bad thought.", text="Half"), {"reasoning": "Good thought.", "text": "Whole."}]
        stream = await started(api, await api.new_session(), script, *tongue)
        client = judged(stream, *tongue)
        assert client.texts == ["Whole."]
        if tongue[0] == "ag-ui":
            assert client.reasoning == "Good thought."
            client.read((await followed(api, stream.headers["Rondo-Run"], *tongue)).chunks)  # the same client comes again
            assert client.reasoning == "Good thought." and client.texts == ["Whole."]
        else:
            shown = [
                part["text"] for part in client.parts if part["type"] == "reasoning" and part["id"] not in client.hidden
            ]
            assert shown == ["Good thought."]


class TestEnds:
    @pytest.mark.parametrize(
        ("script", "finish", "error"),
        [
            ([{"text": "Hi", "finish_reason": "length"}], "length", None),
            ([{"text": "Hi", "finish_reason": "content_filter"}], "content-filter", None),
            ([""], "other", None),
            ([failing(400, "no such model")], None, "provider_rejected"),
            ([], None, "script_exhausted"),
        ],
    )
    async def test_each_end_is_told_in_their_words(
        self, api: Api, tongue: tuple[str, int], script: list[Any], finish: str | None, error: str | None
    ) -> None:
        stream = await started(api, await api.new_session(), script, *tongue, empty_nudge=False)
        client = judged(stream, *tongue)
        run = await api.get(f"/v1/runs/{stream.headers['Rondo-Run']}")
        if tongue[0] == "ai-sdk":
            assert client.finishes == ([finish] if finish else [])
            assert client.errors == ([run["error"]["message"]] if error else [])
            assert stream.frames[-1].data == DONE
        elif error:
            assert [(one["message"], one["code"]) for one in client.errors] == [(run["error"]["message"], error)]
        else:
            assert client.results[0]["status"] == "incomplete" and client.results[0]["finish_reason"] == run["finish_reason"]

    async def test_a_cancelled_run(self, api: Api, test_tools: TestTools, tongue: tuple[str, int]) -> None:
        search = await test_tools.host(api, "search", Held(body={}))
        run = await api.run(await api.new_session(), call("search", text="Wait."), background=True, status=202)
        await search.received()
        await api.post(f"/v1/runs/{run['id']}/cancel", status=200)
        client = judged(await followed(api, run["id"], *tongue), *tongue)
        if tongue[0] == "ai-sdk":
            assert client.is_aborted and client.calls == [("search", "output-error")]
        else:
            assert client.outcomes == [{"type": "cancelled" if tongue[1] else "success"}]
            assert client.results[0]["status"] == "cancelled"

    async def test_who_has_the_end_is_told_so(self, api: Api, tongue: tuple[str, int]) -> None:
        stream = await started(api, await api.new_session(), ["Hi."], *tongue)
        last = max(frame.id or 0 for frame in stream.frames)
        path = f"/v1/runs/{stream.headers['Rondo-Run']}/events?protocol={tongue[0]}&after={last}"
        assert (await api.call("GET", path)).status_code == 204


class TestCutOff:
    async def test_a_stream_that_was_cut_anywhere_goes_on_with_the_same_bytes(
        self, api: Api, test_tools: TestTools, tongue: tuple[str, int]
    ) -> None:
        played = await rich(api, test_tools)
        whole = await followed(api, played.run["id"], *tongue)
        ids = [frame.id for frame in whole.frames if frame.id is not None]
        assert ids == sorted(set(ids)) and set(ids) <= {event.id for event in played.events}
        assert ids[-1] == played.events[-1].id
        for at, frame in enumerate(whole.frames[:-1]):
            if frame.id is not None and frame.id < ids[-1]:
                rest = await followed(api, played.run["id"], *tongue, after=frame.id)
                assert rest.raw == b"".join(later.raw for later in whole.frames[at + 1 :])

    async def test_of_a_lost_log_the_message_comes_anew_and_what_was_shown_is_taken_back(
        self, api: Api, settings: Settings, tongue: tuple[str, int]
    ) -> None:
        script = [{"text": "One two three four.", "chunk_chars": 2, "delay_ms": 40}]
        whole = await started(api, await api.new_session(), script, *tongue)
        run_id = whole.headers["Rondo-Run"]
        await lose_log(settings, run_id)
        cut = [at for at, frame in enumerate(whole.frames) if '"delta":' in frame.data][1]
        rest = await followed(api, run_id, *tongue, after=whole.frames[cut].id)
        seen = Spoken(whole.frames[: cut + 1], whole.headers)
        assert judged(Spoken([*seen.frames, *rest.frames], whole.headers), *tongue).texts == ["One two three four."]
        assert rest.frames[0].id is None

    @pytest.mark.parametrize(("protocol", "version"), AG_UI)
    async def test_ag_ui_is_told_the_conversation_first_so_that_it_may_follow_from_the_start(
        self, api: Api, protocol: str, version: int
    ) -> None:
        session = await api.new_session()
        await api.run(session, "Good morning.", input="Hi")
        second = await api.run(session, "Fine.", input="How are you?")
        await api.run(session, "Bye.", input="Until later")
        stream = await followed(api, second["id"], protocol, version)
        client = AgUiClient(version, [{"id": "own", "role": "user", "content": "?"}, {"id": "half", "role": "assistant"}])
        client.read(stream.chunks)
        assert [message["content"] for message in client.messages] == ["Hi", "Good morning.", "How are you?", "Fine."]

    async def test_a_stream_that_ends_before_its_run_says_so(
        self, settings: Settings, api: Api, test_tools: TestTools, tongue: tuple[str, int]
    ) -> None:
        await test_tools.host(api, "search", Held(body={}))
        app = create_app(settings.model_copy(update={"drain_seconds": 0}))
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://here", timeout=30) as http:
                there = Api(http, api.key, api.workspace_id)
                run = await there.run(await there.new_session(), call("search"), "Done.", background=True, status=202)
                async for event in api.follow(f"/v1/runs/{run['id']}/events"):
                    if event.type == "tool.invoking":
                        break
                app.state.process.leave()
                stream = await followed(there, run["id"], *tongue)
        client = judged(stream, *tongue)
        assert len(client.errors) == 1
        assert stream.frames[-1].id is None and stream.frames[-1].data != DONE


class TestWaiting:
    @pytest.fixture
    async def waiting(self, api: Api, test_tools: TestTools) -> tuple[str, str]:
        """A run that waits for an approval, and the call."""
        await test_tools.host(api, "pay", {"ok": True}, requires_approval=True)
        run = await api.run(await api.new_session(), call("pay", text="May I?"), "Paid.")
        assert run["status"] == "waiting"
        return run["id"], run["pending"][0]["call_id"]

    async def approve(self, api: Api, run_id: str) -> None:
        await api.post(f"/v1/runs/{run_id}/approvals", {"decisions": [{"call_id": "*", "decision": "approve"}]}, 200)

    async def test_the_stream_ends_with_the_question(
        self, api: Api, tongue: tuple[str, int], waiting: tuple[str, str]
    ) -> None:
        run_id, call_id = waiting
        stream = await followed(api, run_id, *tongue)
        client = judged(stream, *tongue)
        if tongue[0] == "ag-ui":
            (asked,) = client.outcomes[0]["interrupts"]
            assert (asked["id"], asked["reason"], asked["toolCallId"]) == (call_id, "tool_call", call_id)
            assert asked["metadata"] == {"tool": "pay", "arguments": {}}
        elif tongue[1] >= 6:
            assert client.calls == [("pay", "approval-requested")] and client.finishes == ["tool-calls"]
        else:
            (part,) = (part for part in client.parts if part["type"] == "data-approval")
            assert part["data"]["call_id"] == part["id"] == call_id and client.finishes == ["tool-calls"]

    async def test_who_comes_back_with_the_last_id_gets_the_rest(
        self, api: Api, tongue: tuple[str, int], waiting: tuple[str, str]
    ) -> None:
        first = await followed(api, waiting[0], *tongue)
        await self.approve(api, waiting[0])
        last = max(frame.id or 0 for frame in first.frames)
        rest = await followed(api, waiting[0], *tongue, after=last)
        whole = Spoken([*(frame for frame in first.frames if frame.data != DONE), *rest.frames], first.headers)
        client = judged(whole, *tongue)
        assert client.texts == ["May I?", "Paid."]
        if tongue[0] == "ag-ui":
            AgUiClient(tongue[1], [{"id": "x", "role": "user", "content": "?"}]).read(rest.chunks)

    async def test_who_follows_from_the_start_afterwards_gets_it_all_in_one_stream(
        self, api: Api, tongue: tuple[str, int], waiting: tuple[str, str]
    ) -> None:
        await self.approve(api, waiting[0])
        await api.events(waiting[0])
        client = judged(await followed(api, waiting[0], *tongue), *tongue)
        assert client.texts == ["May I?", "Paid."]

    async def test_one_that_is_cancelled_while_it_waits(
        self, api: Api, tongue: tuple[str, int], waiting: tuple[str, str]
    ) -> None:
        await api.post(f"/v1/runs/{waiting[0]}/cancel", status=200)
        client = judged(await followed(api, waiting[0], *tongue), *tongue)
        if tongue[0] == "ai-sdk":
            assert client.is_aborted
        else:
            assert client.results[-1]["status"] == "cancelled"

    async def test_a_denied_call(self, api: Api, tongue: tuple[str, int], waiting: tuple[str, str]) -> None:
        decision = {"call_id": "*", "decision": "reject", "reason": "too dear"}
        await api.post(f"/v1/runs/{waiting[0]}/approvals", {"decisions": [decision]}, 200)
        client = judged(await followed(api, waiting[0], *tongue), *tongue)
        if tongue[0] == "ai-sdk":
            assert client.calls == [("pay", "output-denied" if tongue[1] >= 6 else "output-error")]
        else:
            assert "too dear" in client.messages[2]["content"]

    async def test_a_tool_of_the_client_waits_for_its_result(self, api: Api, tongue: tuple[str, int]) -> None:
        body = {"description": "Asks the user.", "parameters": schema(), "kind": "client"}
        await api.call("PUT", "/v1/tools/ask", body)
        first = await started(
            api, await api.new_session(), [calls(wanted("ask"), wanted("ask", id="2")), "Thanks."], *tongue
        )
        run_id = first.headers["Rondo-Run"]
        pending = (await api.get(f"/v1/runs/{run_id}"))["pending"]
        if tongue[0] == "ag-ui":
            assert {one["reason"] for one in judged(first, *tongue).outcomes[0]["interrupts"]} == {"rondo:client"}
        else:
            asked = {part["id"] for part in judged(first, *tongue).parts if part["type"] == "data-pending"}
            assert asked == {one["call_id"] for one in pending}
        results = [{"call_id": one["call_id"], "result": {"yes": True}} for one in pending]
        await api.post(f"/v1/runs/{run_id}/tool-results", {"results": results[:1]}, 200)
        again = await followed(api, run_id, *tongue)
        assert judged(again, *tongue).texts == []  # it still waits for the other one, and the stream ends
        await api.post(f"/v1/runs/{run_id}/tool-results", {"results": results[1:]}, 200)
        await api.events(run_id)
        assert judged(await followed(api, run_id, *tongue), *tongue).texts == ["Thanks."]


class TestDoors:
    @pytest.mark.parametrize(
        ("query", "place"),
        [
            ("protocol=soap", "protocol"),
            ("protocol=ai-sdk&sdk=4", "sdk"),
            ("protocol=ag-ui&sdk=5", "sdk"),
            ("sdk=5", "sdk"),
            ("protocol=ai-sdk&sdk=five", "sdk"),
        ],
    )
    async def test_what_is_not_spoken_is_refused(self, api: Api, query: str, place: str) -> None:
        run = await api.run(await api.new_session(), "Hi.")
        refused = await api.call("GET", f"/v1/runs/{run['id']}/events?{query}")
        assert refused.status_code == 422 and refused.json()["errors"][0]["loc"] == ["query", place]
        started = await api.call("POST", f"/v1/sessions/{run['session_id']}/runs?{query}", {"input": "x", "stream": True})
        assert started.status_code == 422
        assert len((await api.get("/v1/runs"))["data"]) == 1

    @pytest.mark.parametrize("how", [{}, {"stream": False}, {"background": True}])
    async def test_a_protocol_is_for_streams(self, api: Api, how: dict[str, Any]) -> None:
        session = await api.new_session()
        body = {"input": "Hi", "script": ["Hi."], **how}
        refused = await api.call("POST", f"/v1/sessions/{session}/runs?protocol=ag-ui", body)
        assert refused.status_code == 422 and refused.json()["errors"][0]["loc"] == ["query", "protocol"]
        assert (await api.get("/v1/runs"))["data"] == []

    async def test_a_client_token_may(self, api: Api, tongue: tuple[str, int]) -> None:
        session = await api.new_session(config={"script": ["Hello."]})
        token = await api.post(f"/v1/sessions/{session}/tokens", {"can": ["read", "run"]})
        browser = api.with_key(token["token"])
        path = f"/v1/sessions/{session}/runs?protocol={tongue[0]}&sdk={tongue[1]}"
        stream = await spoken(browser, "POST", path, {"input": "Hi", "stream": True})
        assert judged(stream, *tongue).texts == ["Hello."]
