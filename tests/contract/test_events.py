"""The events of a run (contract, section 4, "Events"): their ids, their fields, and that a client can be cut off anywhere,
on any replica, at any time, and still sees every byte once."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from redis.asyncio import ConnectionPool, Redis

from app.infra.settings import Settings
from app.runs import service
from tests.api import TENANT, Api, Event, Played, call, calls, failing, read_events, schema, wanted
from tests.conftest import serving
from tests.contract.test_doors import RFC_3339_UTC, problem
from tests.tools_app import Held, TestTools

FIELDS = {
    "run.queued": {"run"}, "run.started": {"run"},
    "iteration.started": {"iteration", "model"},
    "reasoning.delta": {"iteration", "text"},
    "message.delta": {"iteration", "message_id", "text"},
    "message.discarded": {"iteration", "message_id"},
    "message.completed": {"iteration", "message"},
    "tool.invoking": {"iteration", "call_id", "tool", "arguments"},
    "tool.invoked": {"iteration", "call_id", "tool", "result", "truncated", "outcome", "seconds", "attempts"},
    "iteration.completed": {"iteration", "finish_reason", "usage", "seconds"},
    "guard.hint": {"iteration", "call_id", "streak"},
    "run.waiting": {"pending"},
    "run.resumed": {"reason"},
    "run.completed": {"run"}, "run.incomplete": {"run"}, "run.failed": {"run"}, "run.cancelled": {"run"},
}  # fmt: skip
TERMINAL = {"run.completed", "run.incomplete", "run.failed", "run.cancelled"}
DELTAS = {"message.delta", "reasoning.delta"}
NASTY = "a\u2028b\u2029c\u0085d\r\nevent: run.completed\r\ndata: {}\r\n\r\nid: 99\n\n\x0b\x0c\x1c\x1e: ping\rend"
RICH: list[Any] = [
    failing(503, text="Half of it", chunk_chars=3),
    calls(wanted("search", {"q": "ñ"}), wanted("missing"), text="Let me look.", reasoning="Hm, well.", chunk_chars=4),
    call("search", {"q": 2}),
    {"text": "Nothing was found, I am afraid.", "chunk_chars": 5},
]


def slowly(script: list[Any], milliseconds: int = 8) -> list[Any]:
    turns = [{"text": turn} if isinstance(turn, str) else turn for turn in script]
    return [{**turn, "delay_ms": milliseconds} for turn in turns]


async def rich(api: Api, test_tools: TestTools) -> Played:
    """A run that shows nearly every event."""
    await test_tools.host(api, "search", {"items": []})
    return await api.play(*RICH)


async def stream_of(api: Api, run_id: str, after: int | None = None, *, by_query: bool = False) -> bytes:
    """The frames of a run as they came, pings aside."""
    headers = {} if after is None or by_query else {"Last-Event-ID": str(after)}
    query = f"?after={after}" if by_query and after is not None else ""
    return b"".join([event.raw async for event in api.follow(f"/v1/runs/{run_id}/events{query}", headers)])


async def ended(api: Api, run_id: str) -> dict[str, Any]:
    """The run when it has ended."""
    await api.events(run_id)
    run: dict[str, Any] = await api.get(f"/v1/runs/{run_id}")
    return run


async def reached(api: Api, run_id: str, kind: str) -> AsyncIterator[Event]:
    """A stream of the run's events, read up to the first of this type."""
    stream = api.follow(f"/v1/runs/{run_id}/events")
    async for event in stream:
        if event.type == kind:
            return stream
    raise AssertionError(f"the stream ended before {kind}")


async def rest_of(stream: AsyncIterator[Event]) -> list[str]:
    return [event.type async for event in stream]


async def lose_log(settings: Settings, run_id: str) -> None:
    """Delete what Redis has of a run."""
    assert settings.redis_url is not None
    async with Redis.from_url(settings.redis_url) as redis:
        keys = [key async for key in redis.scan_iter(match=f"*{run_id}*", count=1000)]
        assert keys
        await redis.delete(*keys)


@pytest.fixture(scope="module")
async def replica(settings: Settings, base_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A second process of the same service."""
    async with serving(settings) as url, httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
        yield client


class TestFrames:
    async def test_ids_count_from_one_without_a_gap(self, api: Api, test_tools: TestTools) -> None:
        played = await rich(api, test_tools)
        assert [event.id for event in played.events] == list(range(1, len(played.events) + 1))
        assert len(played.events) > 20

    async def test_queued_and_started_come_first_and_one_terminal_event_last(self, api: Api, test_tools: TestTools) -> None:
        types = (await rich(api, test_tools)).types
        assert types[:2] == ["run.queued", "run.started"]
        assert [kind for kind in types if kind in TERMINAL] == types[-1:]
        assert types.count("run.queued") == types.count("run.started") == 1

    @pytest.mark.parametrize(
        ("script", "terminal"),
        [
            (["Hi."], "run.completed"),
            ([failing(400)], "run.failed"),
            ([], "run.failed"),
            ([{"text": "Hi", "finish_reason": "length"}], "run.incomplete"),
        ],
    )
    async def test_the_terminal_event_is_that_of_the_status_and_holds_the_run(
        self, api: Api, script: list[Any], terminal: str
    ) -> None:
        played = await api.play(*script)
        assert played.events[-1].type == terminal == f"run.{played.run['status']}"
        assert played.events[-1].data["run"] == played.run == await api.get(f"/v1/runs/{played.run['id']}")

    async def test_every_event_has_exactly_its_fields(self, api: Api, test_tools: TestTools) -> None:
        played = await rich(api, test_tools)
        for event in played.events:
            assert set(event.data) == {"type", "run_id", "seq", "at"} | FIELDS[event.type], event.type
            assert (event.data["type"], event.data["run_id"], event.data["seq"]) == (event.type, played.run["id"], event.id)
            assert RFC_3339_UTC.fullmatch(event.data["at"])
        assert set(played.types) == set(FIELDS) - {
            "run.waiting", "run.resumed", "run.incomplete", "run.failed", "run.cancelled",
        }  # fmt: skip

    async def test_waiting_and_resuming_have_exactly_their_fields(self, api: Api) -> None:
        body = {"description": "Asks the user.", "parameters": schema(), "kind": "client"}
        await api.call("PUT", "/v1/tools/ask", body)
        run = await api.run(await api.new_session(), call("ask"), "Done.")
        result = {"call_id": run["pending"][0]["call_id"], "result": 1}
        await api.post(f"/v1/runs/{run['id']}/tool-results", {"results": [result]}, 200)
        events = {event.type: event.data for event in await api.events(run["id"])}
        for kind in ("run.waiting", "run.resumed"):
            assert set(events[kind]) == {"type", "run_id", "seq", "at"} | FIELDS[kind]
        assert set(events["run.waiting"]["pending"][0]) == {"call_id", "tool", "arguments", "reason", "expires_at"}
        assert events["run.resumed"]["reason"] == "answered"

    async def test_the_run_is_shown_as_it_was_at_that_time(self, api: Api) -> None:
        played = await api.play("Hi.")
        queued, started = (event.data["run"] for event in played.events[:2])
        assert (queued["status"], queued["started_at"], queued["output"]) == ("queued", None, None)
        assert (started["status"], started["finished_at"], started["output"]) == ("running", None, None)
        assert set(queued) == set(started) == set(played.run)

    async def test_the_order_within_an_iteration(self, api: Api, test_tools: TestTools) -> None:
        played = await rich(api, test_tools)
        for iteration in (1, 2, 3):
            own = [event.type for event in played.events if event.data.get("iteration") == iteration]
            assert (own[0], own[-1]) == ("iteration.started", "iteration.completed")
            assert own.count("iteration.started") == own.count("message.completed") == 1
            after = own[own.index("message.completed") + 1 : -1]
            assert set(after) <= {"tool.invoking", "tool.invoked", "guard.hint"}

    async def test_deltas_add_up_to_the_message_and_discarded_ones_are_no_part_of_it(
        self, api: Api, test_tools: TestTools
    ) -> None:
        texts: dict[str, str] = {}
        for event in (await rich(api, test_tools)).events:
            if event.type == "message.delta":
                texts[event.data["message_id"]] = texts.get(event.data["message_id"], "") + event.data["text"]
            elif event.type == "message.discarded":
                assert texts.pop(event.data["message_id"]) == "Half of it"
            elif event.type == "message.completed":
                message = event.data["message"]
                assert texts.pop(message["id"], "") == message["content"]
        assert texts == {}

    async def test_each_frame_is_three_lines_that_end_with_lf(self, api: Api) -> None:
        played = await api.play({"text": NASTY, "chunk_chars": 7, "reasoning": NASTY})
        for event in played.events:
            text = event.raw.decode()
            assert text.endswith("\n\n")
            assert "\r" not in text
            lines = text.removesuffix("\n\n").splitlines()
            assert [line.partition(": ")[0] for line in lines] == ["id", "event", "data"]
            assert lines[1] == f"event: {event.type}"

    async def test_text_that_looks_like_a_frame_stays_data(self, api: Api) -> None:
        played = await api.play({"text": NASTY, "chunk_chars": 1, "reasoning": NASTY}, input=NASTY)
        assert "".join(data["text"] for data in played.of("message.delta")) == NASTY
        assert "".join(data["text"] for data in played.of("reasoning.delta")) == NASTY
        assert [message["content"] for message in played.messages] == [NASTY, NASTY]
        assert played.types.count("run.completed") == 1


class TestAnswer:
    async def test_its_headers_keep_proxies_from_holding_it_back(self, api: Api) -> None:
        played = await api.play("Hi.")
        headers = api.headers(**{"Accept-Encoding": "gzip, deflate, br"})
        body = {"input": "Hello", "script": ["Hi."], "stream": True}
        for response in (
            await api.http.get(f"/v1/runs/{played.run['id']}/events", headers=headers),
            await api.http.post(f"/v1/sessions/{played.run['session_id']}/runs", json=body, headers=headers),
        ):
            assert response.status_code == 200
            assert response.headers["content-type"].partition(";")[0] == "text/event-stream"
            assert "no-cache" in response.headers["cache-control"]
            assert response.headers["x-accel-buffering"] == "no"
            assert "content-encoding" not in response.headers

    async def test_the_post_shows_what_the_get_shows(self, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "search", {"items": []})
        shown = await api.stream_run(await api.new_session(), *RICH)
        assert await stream_of(api, shown[0].data["run_id"]) == b"".join(event.raw for event in shown)

    async def test_a_ping_comes_whenever_there_was_nothing_for_a_while(
        self, api: Api, test_tools: TestTools, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(service, "PING_SECONDS", 0.05)
        held = Held(body={"items": []})
        await test_tools.host(api, "search", held)
        run = await api.run(await api.new_session(), call("search"), "Done.", background=True, status=202)
        seen = b""
        async with api.http.stream("GET", f"/v1/runs/{run['id']}/events", headers=api.headers()) as response:
            async for chunk in response.aiter_raw():
                seen += chunk
                if seen.count(b": ping\n\n") >= 3:
                    held.gate.set()
        events = b"".join(part + b"\n\n" for part in seen.split(b"\n\n") if part and part != b": ping")
        assert events == await stream_of(api, run["id"])

    async def test_fifteen_seconds_are_a_while(self) -> None:
        assert service.PING_SECONDS == 15


class TestResuming:
    async def test_a_finished_stream_cut_anywhere_goes_on_with_the_very_next_byte(
        self, api: Api, test_tools: TestTools
    ) -> None:
        played = await rich(api, test_tools)
        run_id, raw = played.run["id"], [event.raw for event in played.events]
        for by_query in (False, True):
            rest = await asyncio.gather(*(stream_of(api, run_id, after, by_query=by_query) for after in range(1, len(raw))))
            assert rest == [b"".join(raw[after:]) for after in range(1, len(raw))]

    async def test_a_live_stream_cut_anywhere_goes_on_with_the_very_next_byte(
        self, api: Api, test_tools: TestTools, replica: httpx.AsyncClient
    ) -> None:
        played = await rich(api, test_tools)
        there = Api(replica, api.key)
        run = await api.run(await api.new_session(), *slowly(RICH), background=True, status=202)

        async def cut(after: int) -> bytes:
            own = (api, there)[after % 2]
            seen: list[bytes] = []
            async with own.http.stream("GET", f"/v1/runs/{run['id']}/events", headers=own.headers()) as response:
                async for event in read_events(response):
                    seen.append(event.raw)
                    if event.id == after:
                        break
            other = (api, there)[after // 2 % 2]
            return b"".join(seen) + await stream_of(other, run["id"], after, by_query=after % 3 == 0)

        count = sum(event.type not in DELTAS for event in played.events)  # deltas may be joined, so these are sure to come
        streams = await asyncio.gather(*(cut(after) for after in range(1, count)))
        whole = await stream_of(api, run["id"])
        assert len(whole.split(b"\n\n")) > count
        assert [after for after, stream in enumerate(streams, 1) if stream != whole] == []

    async def test_followers_early_and_late_here_and_there_see_the_same_bytes(
        self, api: Api, test_tools: TestTools, replica: httpx.AsyncClient
    ) -> None:
        held = Held(body={"items": []})
        search = await test_tools.host(api, "search", held)
        there = Api(replica, api.key)
        run = await api.run(await api.new_session(), *slowly(RICH), background=True, status=202)
        early = [asyncio.create_task(stream_of(own, run["id"])) for own in (api, there)]
        await search.received()
        late = [asyncio.create_task(stream_of(own, run["id"])) for own in (api, there, there)]
        held.gate.set()
        live = await asyncio.gather(*early, *late)
        after = [await stream_of(own, run["id"]) for own in (api, there)]
        assert set(live) | set(after) == {live[0]}
        assert live[0].count(b"\nevent: run.completed\n") == 1

    async def test_a_client_of_another_replica_sees_events_as_they_come(
        self, api: Api, test_tools: TestTools, replica: httpx.AsyncClient
    ) -> None:
        held = Held(body={"items": [1]})
        await test_tools.host(api, "search", held)
        run = await api.run(await api.new_session(), call("search"), "Done.", background=True, status=202)
        there = Api(replica, api.key)
        async with there.http.stream("GET", f"/v1/runs/{run['id']}/events", headers=there.headers()) as response:
            events = read_events(response)
            async for event in events:
                if event.type == "tool.invoking":
                    break
            held.gate.set()
            assert [event.type async for event in events][-1] == "run.completed"

    async def test_a_fresh_replica_whose_first_clients_come_all_at_once_follows_live(
        self, api: Api, test_tools: TestTools, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also where one connection to Redis takes longer to open than the next."""
        turns, get_connection = itertools.count(), ConnectionPool.get_connection

        async def now_and_then_late(pool: ConnectionPool, *arguments: Any, **more: Any) -> Any:
            connection = await get_connection(pool, *arguments, **more)
            await asyncio.sleep(0.3 * (next(turns) % 2))
            return connection

        async with serving(settings) as url, httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
            there = Api(http, api.key)
            await asyncio.gather(*(there.get("/v1/runs") for _ in range(20)))  # so that nobody waits for a connection
            first = await api.run(await api.new_session(), *slowly(["Hi."], 100), background=True, status=202)
            with monkeypatch.context() as patched:
                patched.setattr(ConnectionPool, "get_connection", now_and_then_late)
                await asyncio.gather(*(there.events(first["id"]) for _ in range(10)))
            held = Held(body={"items": [1]})
            search = await test_tools.host(api, "search", held)
            second = await api.run(await api.new_session(), call("search"), "Done.", background=True, status=202)
            await search.received()
            async with asyncio.timeout(service.PING_SECONDS / 2):
                stream = await reached(there, second["id"], "tool.invoking")
                held.gate.set()
                assert (await rest_of(stream))[-1] == "run.completed"

    @pytest.mark.parametrize("how", ["post", "get"])
    async def test_a_client_that_hangs_up_changes_nothing(self, api: Api, test_tools: TestTools, how: str) -> None:
        held = Held(body={"items": [1]})
        search = await test_tools.host(api, "search", held)
        session_id = await api.new_session()
        body = {"input": "Look", "script": [call("search"), "Found."], "stream": how == "post", "background": how == "get"}
        path = f"/v1/sessions/{session_id}/runs"
        if how == "post":
            async with api.http.stream("POST", path, json=body, headers=api.headers()) as response:
                run_id = (await anext(read_events(response))).data["run_id"]
        else:
            run_id = (await api.post(path, body, 202))["id"]
            async with api.http.stream("GET", f"/v1/runs/{run_id}/events", headers=api.headers()) as response:
                await anext(read_events(response))
        await search.received()
        held.gate.set()
        assert (await ended(api, run_id))["output"] == "Found."
        assert [message["role"] for message in await api.messages(session_id)] == ["user", "assistant", "tool", "assistant"]

    async def test_a_client_that_stops_waiting_for_its_answer_changes_nothing(self, api: Api, test_tools: TestTools) -> None:
        held = Held(body={"items": [1]})
        search = await test_tools.host(api, "search", held)
        session_id = await api.new_session()
        asking = asyncio.create_task(api.run(session_id, call("search"), "Found."))
        await search.received()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        held.gate.set()
        (run,) = (await api.get(f"/v1/runs?session_id={session_id}"))["data"]
        assert (await ended(api, run["id"]))["output"] == "Found."
        assert len(await api.messages(session_id)) == 4

    async def test_clients_that_hang_up_leave_nothing_behind(self, api: Api, test_tools: TestTools) -> None:
        async def open_streams() -> float:
            lines = (await api.http.get("/metrics")).text.splitlines()
            return next(float(line.split()[1]) for line in lines if line.startswith("rondo_open_streams "))

        async def look_in() -> None:
            async with api.http.stream("GET", f"/v1/runs/{run['id']}/events", headers=api.headers()) as response:
                await anext(read_events(response))

        held = Held(body={"items": [1]})
        search = await test_tools.host(api, "search", held)
        run = await api.run(await api.new_session(), call("search"), "Found.", background=True, status=202)
        await search.received()
        before = await open_streams()
        await asyncio.gather(*(look_in() for _ in range(50)))
        async with asyncio.timeout(5):
            while await open_streams() > before:
                await asyncio.sleep(0.01)
        held.gate.set()
        assert (await ended(api, run["id"]))["output"] == "Found."

    async def test_what_comes_late_after_the_end_is_only_the_terminal_event(self, api: Api) -> None:
        played = await api.play("Hi.")
        last = len(played.events)
        assert await stream_of(api, played.run["id"], last - 1) == played.events[-1].raw

    async def test_who_has_the_terminal_event_gets_a_204(self, api: Api) -> None:
        played = await api.play("Hi.")
        path, last = f"/v1/runs/{played.run['id']}/events", len(played.events)
        for response in (
            await api.call("GET", path, Last_Event_ID=str(last)),
            await api.call("GET", f"{path}?after={last}"),
            await api.call("GET", f"{path}?after=1", Last_Event_ID=str(last)),
        ):
            assert (response.status_code, response.content) == (204, b"")

    async def test_an_id_that_the_run_has_not_reached_is_refused(self, api: Api, test_tools: TestTools) -> None:
        held = Held()
        search = await test_tools.host(api, "search", held)
        done = (await api.play("Hi.")).run
        under_way = await api.run(await api.new_session(), call("search"), "Done.", background=True, status=202)
        await search.received()
        for run in (done, under_way):
            for after in (100, 999_999, 2**31, 10**30):
                path = f"/v1/runs/{run['id']}/events"
                problem(await api.call("GET", path, Last_Event_ID=str(after)), 422)
                problem(await api.call("GET", f"{path}?after={after}"), 422)
        held.gate.set()
        count = len(await api.events(done["id"]))
        problem(await api.call("GET", f"/v1/runs/{done['id']}/events?after={count + 1}"), 422)
        await ended(api, under_way["id"])

    @pytest.mark.parametrize("junk", ["abc", "-1", "1.5", "1e3", "0x1", "1 2", "%EF%BC%91", "%00", "%C2%B2", "+1", "null"])
    async def test_junk_is_refused(self, api: Api, junk: str) -> None:
        played = await api.play("Hi.")
        problem(await api.call("GET", f"/v1/runs/{played.run['id']}/events?after={junk}"), 422)
        if "%" not in junk:
            problem(await api.call("GET", f"/v1/runs/{played.run['id']}/events", Last_Event_ID=junk), 422)

    async def test_zero_and_nothing_mean_from_the_start(self, api: Api) -> None:
        played = await api.play("Hi.")
        whole = b"".join(event.raw for event in played.events)
        path = f"/v1/runs/{played.run['id']}/events"
        for query, headers in (("", {"Last-Event-ID": ""}), ("", {"Last-Event-ID": "0"}), ("?after=0", {}), ("?after=", {})):
            assert (await api.http.get(path + query, headers=api.headers(**headers))).content == whole


class TestLostLog:
    """Redis has lost the run: its events are made again from the rows."""

    def told(self, events: list[Event]) -> list[tuple[int | None, dict[str, Any]]]:
        """All events but the deltas, without the moment they were shown."""
        found = [(event.id, {**event.data, "at": ""}) for event in events if event.type not in DELTAS]
        return found

    async def test_every_event_but_the_deltas_keeps_its_id_and_fields(
        self, api: Api, test_tools: TestTools, settings: Settings
    ) -> None:
        played = await rich(api, test_tools)
        await lose_log(settings, played.run["id"])
        assert self.told(await api.events(played.run["id"])) == self.told(played.events)

    @pytest.mark.parametrize("kind", ["without a session", "not persisted"])
    async def test_a_run_that_stored_no_messages_can_be_shown_again_too(
        self, api: Api, settings: Settings, kind: str
    ) -> None:
        script = [call("missing", text="Looking."), {"text": "Done, done.", "chunk_chars": 2}]
        if kind == "without a session":
            body = {"tenant": TENANT, "model": "scripted/x", "input": "Hello", "script": script}
            run = await api.post("/v1/runs", body, 200)
        else:
            run = await api.run(await api.new_session(), *script, persist=False)
        before = await api.events(run["id"])
        await lose_log(settings, run["id"])
        after = await api.events(run["id"])
        assert self.told(after) == self.told(before)
        assert [event.data["text"] for event in after if event.type == "message.delta"] == ["Looking.", "Done, done."]

    async def test_the_text_of_a_message_is_one_delta_with_the_last_id_its_deltas_had(
        self, api: Api, test_tools: TestTools, settings: Settings
    ) -> None:
        played = await rich(api, test_tools)
        last: dict[str, tuple[int | None, str]] = {}
        for event in played.events:
            if event.type == "message.delta":
                text = last.get(event.data["message_id"], (0, ""))[1] + event.data["text"]
                last[event.data["message_id"]] = (event.id, text)
            elif event.type == "message.discarded":
                del last[event.data["message_id"]]
        await lose_log(settings, played.run["id"])
        deltas = [event for event in await api.events(played.run["id"]) if event.type in DELTAS]
        assert {event.data["message_id"]: (event.id, event.data["text"]) for event in deltas} == last
        assert len(deltas) == len(last) == 2

    async def test_a_client_inside_a_message_is_first_told_to_forget_it(self, api: Api, settings: Settings) -> None:
        played = await api.play({"text": "One two three four.", "chunk_chars": 4})
        deltas = [event.id or 0 for event in played.events if event.type == "message.delta"]
        (message,) = played.of("message.completed")
        await lose_log(settings, played.run["id"])
        for after in deltas[:-1]:
            first, second, *rest = await api.events(played.run["id"], after)
            assert (first.type, first.id) == ("message.discarded", None)
            assert b"id:" not in first.raw
            assert first.data["message_id"] == message["message"]["id"]
            assert {"iteration", "message_id"} <= set(first.data)
            assert (second.type, second.id, second.data["text"]) == ("message.delta", deltas[-1], "One two three four.")
            assert rest[-1].type == "run.completed"

    async def test_a_client_before_or_after_a_message_is_not(self, api: Api, settings: Settings) -> None:
        played = await api.play({"text": "One two three four.", "chunk_chars": 4})
        deltas = [event.id or 0 for event in played.events if event.type == "message.delta"]
        await lose_log(settings, played.run["id"])
        for after in (0, 1, deltas[0] - 1):
            assert "message.discarded" not in [event.type for event in await api.events(played.run["id"], after)]
        assert (await api.events(played.run["id"], deltas[-1]))[0].type == "message.completed"

    async def test_ids_mean_the_same_as_before(self, api: Api, settings: Settings) -> None:
        played = await api.play({"text": "One two three four.", "chunk_chars": 4})
        path, last = f"/v1/runs/{played.run['id']}/events", len(played.events)
        await lose_log(settings, played.run["id"])
        assert (await api.call("GET", f"{path}?after={last}")).status_code == 204
        problem(await api.call("GET", f"{path}?after={last + 1}"), 422)
        (terminal,) = await api.events(played.run["id"], last - 1)
        assert terminal.data["run"] == played.run

    async def test_a_log_that_is_lost_under_way_costs_nothing_but_deltas(
        self, api: Api, test_tools: TestTools, settings: Settings
    ) -> None:
        held = Held(body={"items": [1]})
        search = await test_tools.host(api, "search", held)
        script = [call("search", text="Let me look.", chunk_chars=3), {"text": "Found it.", "chunk_chars": 3}]
        run = await api.run(await api.new_session(), *script, background=True, status=202)
        await search.received()
        live = asyncio.create_task(api.events(run["id"]))
        seen = [event async for event in until(api, run["id"], "tool.invoking")]
        await lose_log(settings, run["id"])
        held.gate.set()
        followed = await live
        assert [event.id for event in followed] == list(range(1, len(followed) + 1))
        resumed = seen + await api.events(run["id"], seen[-1].id)
        assert [event.raw for event in resumed] == [event.raw for event in followed]
        assert self.told(await api.events(run["id"])) == self.told(followed)

    async def test_a_run_cancelled_while_queued_is_shown_again_as_such(self, api: Api, settings: Settings) -> None:
        session_id = await api.new_session()
        first = await api.run(session_id, {"text": "Hi.", "delay_ms": 60_000}, background=True, status=202)
        second = await api.run(session_id, "Hi.", on_conflict="queue", background=True, status=202)
        await api.post(f"/v1/runs/{second['id']}/cancel", status=200)
        before = await api.events(second["id"])
        await lose_log(settings, second["id"])
        assert self.told(await api.events(second["id"])) == self.told(before)
        await api.post(f"/v1/runs/{first['id']}/cancel", status=200)


async def until(api: Api, run_id: str, kind: str) -> AsyncIterator[Event]:
    """The events of a run up to the first of this type."""
    async with api.http.stream("GET", f"/v1/runs/{run_id}/events", headers=api.headers()) as response:
        async for event in read_events(response):
            yield event
            if event.type == kind:
                return


class TestJson:
    async def test_characters_are_written_as_they_are_where_a_line_allows_it(self, api: Api) -> None:
        played = await api.play("¿Qué? 😀 日本")
        (delta,) = [event for event in played.events if event.type == "message.delta"]
        assert "¿Qué? 😀 日本".encode() in delta.raw
        assert json.loads(delta.raw.split(b"data: ")[1])["text"] == "¿Qué? 😀 日本"
