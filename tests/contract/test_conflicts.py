"""One active run per session (contract, section 4): `on_conflict`, cancelling, deleting, and what waits its turn."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.infra.settings import Settings
from app.runs import service
from tests.api import TENANT, Api, Played, call, calls, read_events, wanted
from tests.conftest import serving
from tests.contract.test_doors import problem
from tests.tools_app import Held, Hook, Reply, TestTools

SLOW = {"text": "Slow.", "delay_ms": 60_000}
ACTIVE = {"queued", "running", "waiting"}


async def begin(api: Api, session_id: str, *script: Any, **fields: Any) -> dict[str, Any]:
    """A run in the background."""
    run: dict[str, Any] = await api.run(session_id, *script, background=True, status=202, **fields)
    return run


async def hanging(api: Api, test_tools: TestTools, session_id: str) -> tuple[dict[str, Any], Hook]:
    """A run that stands in the middle of a tool call for ever."""
    hook = await test_tools.host(api, "search", Reply(ending="hang"))
    run = await begin(api, session_id, call("search"), "Found.", input="First")
    await hook.received()
    return run, hook


async def holding(api: Api, test_tools: TestTools, session_id: str) -> tuple[dict[str, Any], Held, Hook]:
    """A run that stands in the middle of a tool call until the gate is opened."""
    held = Held(body={"items": [1]})
    hook = await test_tools.host(api, "search", held)
    run = await begin(api, session_id, call("search"), "Found.", input="First")
    await hook.received()
    return run, held, hook


async def ended(api: Api, run: dict[str, Any]) -> Played:
    await api.events(run["id"])
    return await api.played(await api.get(f"/v1/runs/{run['id']}"))


async def cancel(api: Api, run: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = await api.post(f"/v1/runs/{run['id']}/cancel", status=200)
    return answer


@pytest.fixture(scope="module")
async def replica(settings: Settings, base_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A second process of the same service."""
    async with serving(settings) as url, httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
        yield client


class TestReject:
    async def test_a_busy_session_is_a_409_that_names_the_run(self, api: Api) -> None:
        session_id = await api.new_session()
        run = await begin(api, session_id, SLOW)
        for fields in ({}, {"on_conflict": "reject"}, {"stream": True}, {"background": True}):
            body = {"input": "Second", "script": ["Hi."], **fields}
            response = await api.call("POST", f"/v1/sessions/{session_id}/runs", body)
            document = problem(response, 409, "run_in_progress")
            assert (document["run_id"], document["pending"]) == (run["id"], [])
        await cancel(api, run)
        assert [message["content"] for message in await api.messages(session_id)] == ["Hello"]

    async def test_a_waiting_run_is_active_and_tells_what_it_waits_for(self, api: Api) -> None:
        body = {"description": "Asks.", "parameters": {"type": "object"}, "kind": "client"}
        await api.call("PUT", "/v1/tools/ask", body)
        session_id = await api.new_session()
        run = await api.run(session_id, call("ask"), "Done.")
        response = await api.call("POST", f"/v1/sessions/{session_id}/runs", {"input": "Second", "script": ["Hi."]})
        document = problem(response, 409, "run_in_progress")
        assert (document["run_id"], document["pending"]) == (run["id"], run["pending"])
        assert run["pending"]
        await cancel(api, run)

    async def test_the_session_is_free_again_after_the_end(self, api: Api) -> None:
        session_id = await api.new_session()
        for number in range(3):
            assert (await api.run(session_id, f"Answer {number}."))["output"] == f"Answer {number}."

    async def test_other_sessions_are_not_busy(self, api: Api) -> None:
        run = await begin(api, await api.new_session(), SLOW)
        assert (await api.run(await api.new_session(), "Hi."))["status"] == "completed"
        await cancel(api, run)

    async def test_of_twenty_at_once_one_is_accepted(self, api: Api, replica: httpx.AsyncClient) -> None:
        session_id = await api.new_session()
        callers = [api, Api(replica, api.key)] * 10
        body = {"input": "Hello", "script": [SLOW], "background": True}
        answers = await asyncio.gather(*(caller.call("POST", f"/v1/sessions/{session_id}/runs", body) for caller in callers))
        (accepted,) = [response.json() for response in answers if response.status_code == 202]
        for response in answers:
            if response.status_code != 202:
                assert problem(response, 409, "run_in_progress")["run_id"] == accepted["id"]
        assert [item["id"] for item in (await api.get("/v1/runs"))["data"]] == [accepted["id"]]
        assert len(await api.messages(session_id)) == 1
        await cancel(api, accepted)


class TestQueue:
    async def test_what_is_queued_runs_in_the_order_of_asking(self, api: Api, test_tools: TestTools) -> None:
        session_id = await api.new_session()
        first, held, _ = await holding(api, test_tools, session_id)
        runs = [await begin(api, session_id, f"Answer {name}.", input=name, on_conflict="queue") for name in ("B", "C", "D")]
        assert [run["status"] for run in runs] == ["queued"] * 3
        assert [run["started_at"] for run in runs] == [None] * 3
        assert [message["content"] for message in await api.messages(session_id)] == ["First", ""]
        held.gate.set()
        played = [await ended(api, run) for run in (first, *runs)]
        assert [one.run["output"] for one in played] == ["Found.", "Answer B.", "Answer C.", "Answer D."]
        contents = [message["content"] for message in await api.messages(session_id) if message["role"] != "tool"]
        assert contents == ["First", "", "Found.", "B", "Answer B.", "C", "Answer C.", "D", "Answer D."]
        for one in played:
            assert one.types[:2] == ["run.queued", "run.started"]

    async def test_a_free_session_starts_at_once(self, api: Api) -> None:
        run = await api.run(await api.new_session(), "Hi.", on_conflict="queue")
        assert run["status"] == "completed"

    async def test_a_queued_run_is_active(self, api: Api) -> None:
        session_id = await api.new_session()
        first = await begin(api, session_id, SLOW)
        second = await begin(api, session_id, SLOW, on_conflict="queue")
        response = await api.call("POST", f"/v1/sessions/{session_id}/runs", {"input": "Third", "script": ["Hi."]})
        problem(response, 409, "run_in_progress")
        for run in (second, first):
            await cancel(api, run)

    async def test_who_waits_for_a_queued_run_gets_its_end(self, api: Api, test_tools: TestTools) -> None:
        session_id = await api.new_session()
        _, held, _ = await holding(api, test_tools, session_id)
        waited = asyncio.create_task(api.run(session_id, "Second.", on_conflict="queue"))
        streamed = asyncio.create_task(api.stream_run(session_id, "Third.", on_conflict="queue"))
        while len((await api.get("/v1/runs?status=queued"))["data"]) < 2:
            await asyncio.sleep(0.01)
        held.gate.set()
        assert (await waited)["output"] == "Second."
        assert [event.type for event in await streamed][-1] == "run.completed"

    async def test_many_on_two_replicas_never_run_at_once(self, api: Api, replica: httpx.AsyncClient) -> None:
        session_id = await api.new_session()
        there = Api(replica, api.key)
        runs = await asyncio.gather(
            *(
                begin((api, there)[number % 2], session_id, f"Answer {number}.", input=f"{number}", on_conflict="queue")
                for number in range(12)
            )
        )
        played = [(await ended(api, run)).run for run in runs]
        assert {run["status"] for run in played} == {"completed"}
        spans = sorted((run["started_at"], run["finished_at"]) for run in played)
        for earlier, later in itertools.pairwise(spans):
            assert earlier[1] <= later[0]
        messages = await api.messages(session_id)
        assert [message["role"] for message in messages] == ["user", "assistant"] * 12
        for asked, answered in zip(messages[::2], messages[1::2], strict=True):
            assert answered["content"] == f"Answer {asked['content']}."


class TestInterrupt:
    async def test_the_run_before_is_cancelled_and_its_calls_are_answered_in_their_place(
        self, api: Api, test_tools: TestTools
    ) -> None:
        held = Held(body={"items": [1]})
        hook = await test_tools.host(api, "search", held)
        session_id = await api.new_session()
        first = await begin(api, session_id, calls(wanted("search"), wanted("search", {"q": 2})), "Found.", input="First")
        await hook.received(2)
        second = await api.run(session_id, "Second answer.", input="Second", on_conflict="interrupt")
        assert second["output"] == "Second answer."
        played = await ended(api, first)
        assert played.ending == ("cancelled", "cancelled")
        assert played.outcomes == ["cancelled", "cancelled"]
        messages = await api.messages(session_id)
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool", "user", "assistant"]
        asked = [item["id"] for item in messages[1]["tool_calls"]]
        assert [message["tool_call_id"] for message in messages[2:4]] == asked

    async def test_a_free_session_starts_at_once(self, api: Api) -> None:
        assert (await api.run(await api.new_session(), "Hi.", on_conflict="interrupt"))["status"] == "completed"

    async def test_queued_runs_are_cancelled_too(self, api: Api) -> None:
        session_id = await api.new_session()
        first = await begin(api, session_id, SLOW)
        second = await begin(api, session_id, SLOW, on_conflict="queue")
        assert (await api.run(session_id, "Hi.", on_conflict="interrupt"))["output"] == "Hi."
        for run in (first, second):
            assert (await ended(api, run)).ending == ("cancelled", "cancelled")

    async def test_a_run_of_another_replica_is_interrupted_as_well(self, api: Api, replica: httpx.AsyncClient) -> None:
        session_id = await api.new_session()
        first = await begin(api, session_id, SLOW)
        there = Api(replica, api.key)
        assert (await there.run(session_id, "Hi.", on_conflict="interrupt"))["output"] == "Hi."
        assert (await ended(api, first)).ending == ("cancelled", "cancelled")

    async def test_several_at_once_leave_one(self, api: Api) -> None:
        session_id = await api.new_session()
        first = await begin(api, session_id, SLOW)
        runs = await asyncio.gather(*(begin(api, session_id, SLOW, on_conflict="interrupt") for _ in range(4)))
        found = (await api.get(f"/v1/runs?session_id={session_id}"))["data"]
        assert len(found) == len({first["id"], *(run["id"] for run in runs)}) == 5
        (left,) = [run for run in found if run["status"] in ACTIVE]
        assert {run["status"] for run in found if run["id"] != left["id"]} == {"cancelled"}
        await cancel(api, left)


class TestCancel:
    async def test_a_run_under_way_ends_and_what_it_calls_is_abandoned(self, api: Api, test_tools: TestTools) -> None:
        session_id = await api.new_session()
        run, hook = await hanging(api, test_tools, session_id)
        gone = asyncio.create_task(hook.abandoned())
        answer = await cancel(api, run)
        assert (answer["status"], answer["finish_reason"]) == ("cancelled", "cancelled")
        assert answer["finished_at"] is not None
        played = await ended(api, run)
        assert played.types[-1] == "run.cancelled"
        assert played.outcomes == ["cancelled"]
        assert [message["role"] for message in played.messages] == ["user", "assistant", "tool"]
        await gone
        assert (await api.run(session_id, "Next."))["output"] == "Next."

    async def test_what_the_run_has_said_is_its_output(self, api: Api) -> None:
        run = await begin(api, await api.new_session(), call("missing", text="Let me look."), SLOW)
        async for event in api.follow(f"/v1/runs/{run['id']}/events"):
            if event.type == "iteration.completed":
                await cancel(api, run)
        assert (await api.get(f"/v1/runs/{run['id']}"))["output"] == "Let me look."

    async def test_it_is_idempotent(self, api: Api) -> None:
        run = await begin(api, await api.new_session(), SLOW)
        first = await cancel(api, run)
        assert await cancel(api, run) == await cancel(api, run) == first

    async def test_several_at_once_are_one(self, api: Api, replica: httpx.AsyncClient) -> None:
        run = await begin(api, await api.new_session(), SLOW)
        answers = await asyncio.gather(*(cancel(caller, run) for caller in [api, Api(replica, api.key)] * 3))
        assert {answer["status"] for answer in answers} == {"cancelled"}
        assert (await ended(api, run)).types.count("run.cancelled") == 1

    @pytest.mark.parametrize("script", [["Hi."], [], [{"text": "Hi", "finish_reason": "length"}]])
    async def test_a_finished_run_stays_as_it_is(self, api: Api, script: list[Any]) -> None:
        run = await api.run(await api.new_session(), *script)
        assert await cancel(api, run) == run == await api.get(f"/v1/runs/{run['id']}")

    async def test_a_queued_run_never_starts(self, api: Api, test_tools: TestTools) -> None:
        session_id = await api.new_session()
        first, held, _ = await holding(api, test_tools, session_id)
        second = await begin(api, session_id, "Never.", input="Never asked", on_conflict="queue")
        answer = await cancel(api, second)
        assert (answer["status"], answer["started_at"], answer["iterations"]) == ("cancelled", None, 0)
        held.gate.set()
        assert (await ended(api, first)).ending == ("completed", "stop")
        assert (await ended(api, second)).types == ["run.queued", "run.cancelled"]

    async def test_a_run_that_never_started_left_nothing_between_a_question_and_its_answer(
        self, api: Api, test_tools: TestTools
    ) -> None:
        session_id = await api.new_session()
        first, held, _ = await holding(api, test_tools, session_id)
        await cancel(api, await begin(api, session_id, "Never.", input="Never asked", on_conflict="queue"))
        held.gate.set()
        await ended(api, first)
        contents = [message["content"] for message in await api.messages(session_id) if message["role"] != "tool"]
        assert contents == ["First", "", "Found."]

    async def test_what_is_queued_behind_it_runs(self, api: Api) -> None:
        session_id = await api.new_session()
        first = await begin(api, session_id, SLOW)
        second = await begin(api, session_id, "Second.", on_conflict="queue")
        third = await begin(api, session_id, "Third.", on_conflict="queue")
        await cancel(api, second)
        await cancel(api, first)
        assert (await ended(api, third)).run["output"] == "Third."

    async def test_it_works_from_another_replica(self, api: Api, replica: httpx.AsyncClient) -> None:
        run = await begin(api, await api.new_session(), SLOW)
        answer = await cancel(Api(replica, api.key), run)
        assert (answer["status"], answer["finish_reason"]) == ("cancelled", "cancelled")
        assert (await ended(api, run)).types[-1] == "run.cancelled"

    async def test_who_waits_for_the_run_is_told(self, api: Api) -> None:
        session_id = await api.new_session()
        waited = asyncio.create_task(api.run(session_id, SLOW))
        while not (found := (await api.get(f"/v1/runs?session_id={session_id}"))["data"]):
            await asyncio.sleep(0.01)
        await cancel(api, found[0])
        assert (await waited)["status"] == "cancelled"

    async def test_a_run_that_waits_is_cancelled_and_nothing_is_pending(self, api: Api) -> None:
        body = {"description": "Asks.", "parameters": {"type": "object"}, "kind": "client"}
        await api.call("PUT", "/v1/tools/ask", body)
        run = await api.run(await api.new_session(), call("ask"), "Done.")
        assert run["status"] == "waiting"
        answer = await cancel(api, run)
        assert (answer["status"], answer["pending"]) == ("cancelled", [])
        played = await ended(api, run)
        assert played.outcomes == ["cancelled"]
        assert [message["role"] for message in played.messages] == ["user", "assistant", "tool"]


class TestDeletedSession:
    async def test_a_run_under_way_is_gone_and_what_it_calls_is_abandoned(self, api: Api, test_tools: TestTools) -> None:
        session_id = await api.new_session()
        run, hook = await hanging(api, test_tools, session_id)
        gone = asyncio.create_task(hook.abandoned())
        assert (await api.call("DELETE", f"/v1/sessions/{session_id}")).status_code == 204
        await gone
        for path in (f"/v1/runs/{run['id']}", f"/v1/runs/{run['id']}/events", f"/v1/sessions/{session_id}/messages"):
            problem(await api.call("GET", path), 404)

    async def test_who_waits_for_the_run_is_told(self, api: Api) -> None:
        session_id = await api.new_session()
        body = {"input": "Hello", "script": [SLOW]}
        waited = asyncio.create_task(api.call("POST", f"/v1/sessions/{session_id}/runs", body))
        while not (await api.get(f"/v1/runs?session_id={session_id}"))["data"]:
            await asyncio.sleep(0.01)
        await api.call("DELETE", f"/v1/sessions/{session_id}")
        problem(await waited, 404)

    async def test_who_follows_the_run_is_let_go_at_the_next_ping(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(service, "PING_SECONDS", 0.2)
        session_id = await api.new_session()
        run = await begin(api, session_id, SLOW)
        async with api.http.stream("GET", f"/v1/runs/{run['id']}/events", headers=api.headers()) as response:
            events = read_events(response)
            assert (await anext(events)).type == "run.queued"
            await api.call("DELETE", f"/v1/sessions/{session_id}")
            async with asyncio.timeout(5):
                seen = [event.type async for event in events]
        assert not {"run.completed", "run.failed"} & set(seen)

    async def test_queued_runs_are_gone_too(self, api: Api) -> None:
        session_id = await api.new_session()
        await begin(api, session_id, SLOW)
        queued = await begin(api, session_id, SLOW, on_conflict="queue")
        assert (await api.call("DELETE", f"/v1/sessions/{session_id}")).status_code == 204
        problem(await api.call("GET", f"/v1/runs/{queued['id']}"), 404)
        assert await api.get("/v1/runs") == {"data": [], "next": None}


class TestCapacity:
    async def test_what_is_over_it_is_accepted_and_runs_later(self, api: Api, settings: Settings) -> None:
        small = settings.model_copy(update={"max_concurrent_runs": 2})
        async with serving(small) as url, httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
            there = Api(http, api.key)
            slow = [await begin(there, await there.new_session(), SLOW) for _ in range(2)]
            third = await begin(there, await there.new_session(), "Third.")
            alone = {"tenant": TENANT, "model": "scripted/x", "input": "Hello", "script": ["Alone."], "background": True}
            fourth = await there.post("/v1/runs", alone, 202)
            assert [run["status"] for run in (*slow, third, fourth)] == ["running", "running", "queued", "queued"]
            for run in slow:
                await cancel(there, run)
            for run, output in ((third, "Third."), (fourth, "Alone.")):
                played = await ended(there, run)
                assert (played.run["output"], played.types[:2]) == (output, ["run.queued", "run.started"])

    async def test_the_key_of_an_accepted_run_is_looked_at_before_it(self, api: Api, settings: Settings) -> None:
        small = settings.model_copy(update={"max_concurrent_runs": 1})
        async with serving(small) as url, httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
            there = Api(http, api.key)
            path = f"/v1/sessions/{await there.new_session()}/runs"
            body = {"input": "Hello", "script": [SLOW], "background": True}
            answers = [await there.call("POST", path, body, Idempotency_Key="one") for _ in range(2)]
            assert answers[0].json()["id"] == answers[1].json()["id"]
            assert [response.json()["status"] for response in answers] == ["running", "running"]
            await cancel(there, answers[0].json())


class TestManyInterrupts:
    async def test_everyone_who_interrupts_at_once_is_accepted_and_one_is_left(self, api: Api) -> None:
        session_id = await api.new_session()
        started = await asyncio.gather(*(begin(api, session_id, SLOW, on_conflict="interrupt") for _ in range(12)))
        runs = [await api.get(f"/v1/runs/{run['id']}") for run in started]
        left = [run for run in runs if run["status"] != "cancelled"]
        assert len(left) == 1
        await cancel(api, left[0])
