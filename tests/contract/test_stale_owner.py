"""A process that stood still for longer than a lease: the run is another's by then, and whatever it tries is refused."""

import asyncio
import signal

import pytest

from app.infra.settings import Settings
from tests.api import TestTools, call
from tests.contract.test_recovery import Follower, Replica, check, ended, fleet_on, said, template
from tests.providers.model_server import ModelServer, json_answer
from tests.tools_app import Held

__all__ = ["template"]


async def refused(replica: Replica) -> dict[str, float]:
    """What the process was refused, by kind."""
    lines = (await replica.http.get("/metrics")).text.splitlines()
    found = [line for line in lines if line.startswith("rondo_stale_writes_refused_total{")]
    return {line.split('"')[1]: float(line.split()[1]) for line in found}


class TestStoodStill:
    async def test_its_writes_are_refused_and_it_calls_nobody(
        self, settings: Settings, template: str, test_tools: TestTools
    ) -> None:
        async with fleet_on(settings, "recovery_stale", template) as fleet:
            first, second = await asyncio.gather(fleet.start(), fleet.start())
            api = await first.admin.new_workspace()
            other = second.api(api)
            held = Held(body={"items": ["late"]})
            slow = await test_tools.host(api, "slow", held, {"items": ["again"]})
            after = await test_tools.host(api, "after", {"items": [2]})
            session = await api.new_session()
            run = await api.run(session, call("slow"), call("after"), "Done.", background=True, status=202)
            await slow.received()
            follower = Follower(run["id"], other)
            await follower.saw("tool.invoking")
            first.process.send_signal(signal.SIGSTOP)
            try:
                played = await ended(other, run)
            finally:
                held.gate.set()
                first.process.send_signal(signal.SIGCONT)
            async with asyncio.timeout(30):
                while not await refused(first):
                    await asyncio.sleep(0.05)
            async with asyncio.timeout(60):
                await follower.task
            assert (*played.ending, played.run["output"]) == ("completed", "stop", "Done.")
            assert (len(slow.requests), len(after.requests)) == (2, 1)
            assert {request.headers["idempotency-key"] for request in slow.requests} == {played.calls[0]["call_id"]}
            check(played)
            assert [event.raw for event in follower.seen] == [event.raw for event in await other.events(run["id"])]
            assert (await ended(other, run)).messages == played.messages

    async def test_it_does_not_ask_again_after_the_pause_of_a_retry(self, settings: Settings, template: str) -> None:
        async with ModelServer() as model:
            urls = {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "sk-test"}
            async with fleet_on(settings, "recovery_stale_retry", template, **urls) as fleet:
                first, second = await asyncio.gather(fleet.start(), fleet.start())
                api = await first.admin.new_workspace()
                busy = json_answer({"error": {"message": "busy"}}, 503, Retry_After="1")
                model.play(busy, said("Done."), said("never"))
                run = await api.run(await api.new_session(), model="openai/x", background=True, status=202)
                async with asyncio.timeout(30):
                    await model.asked.wait()
                first.process.send_signal(signal.SIGSTOP)
                try:
                    played = await ended(second.api(api), run)
                finally:
                    first.process.send_signal(signal.SIGCONT)
                async with asyncio.timeout(30):
                    while not await refused(first):
                        await asyncio.sleep(0.05)
                assert (*played.ending, played.run["output"]) == ("completed", "stop", "Done.")
                assert (len(model.requests), model.left) == (2, 1)


class TestLogLostAndOwnerKilled:
    @pytest.mark.parametrize("where", ["message", "call"])
    async def test_no_id_is_given_twice_and_nothing_is_shown_twice(
        self, settings: Settings, template: str, test_tools: TestTools, where: str
    ) -> None:
        async with fleet_on(settings, f"recovery_lost_{where}", template) as fleet:
            first, second = await asyncio.gather(fleet.start(), fleet.start())
            api = await first.admin.new_workspace()
            other = second.api(api)
            held = Held(body={"items": [1]})
            await test_tools.host(api, "slow", held)
            text = {"text": "One two three four.", "chunk_chars": 2, "delay_ms": 150}
            script = [text] if where == "message" else [call("slow"), "Done."]
            run = await api.run(await api.new_session(), *script, background=True, status=202)
            follower = Follower(run["id"], api, other)
            await follower.saw(*(("message.delta", 4) if where == "message" else ("tool.invoking", 1)))
            await fleet.forget_log(run["id"])
            await first.kill()
            held.gate.set()
            async with asyncio.timeout(60):
                await follower.task
            ids = [event.id for event in follower.seen if event.id is not None]
            assert ids == sorted(set(ids))
            types = follower.types
            for kind in ("run.started", "iteration.started", "tool.invoking", "tool.invoked", "message.completed"):
                expected = 1 if where == "message" or "tool" in kind or kind == "run.started" else 2
                expected = 0 if where == "message" and "tool" in kind else expected
                assert types.count(kind) == expected, kind
            assert types.count("run.resumed") == 1
            whole = await other.events(run["id"])
            missed = [event.id for event in whole if event.type != "message.delta" and event.id not in ids]
            assert missed == []

    @pytest.mark.parametrize("where", ["message", "next message"])
    async def test_whoever_cancels_the_run_then_shows_what_its_owner_had_shown(
        self, settings: Settings, template: str, test_tools: TestTools, where: str
    ) -> None:
        async with fleet_on(settings, f"recovery_cancel_{where.split()[0]}", template) as fleet:
            first, second = await asyncio.gather(fleet.start(), fleet.start())
            api = await first.admin.new_workspace()
            other = second.api(api)
            await test_tools.host(api, "search", {"items": [1]})
            text = {"text": "One two three four.", "chunk_chars": 2, "delay_ms": 150}
            script = [text] if where == "message" else [call("search"), text]
            run = await api.run(await api.new_session(), *script, background=True, status=202)
            follower = Follower(run["id"], api, other)
            await follower.saw("message.delta", 3)
            await fleet.forget_log(run["id"])
            await first.kill()
            assert (await other.post(f"/v1/runs/{run['id']}/cancel", status=200))["status"] == "cancelled"
            async with asyncio.timeout(60):
                await follower.task
            whole = {event.id: event.type for event in await other.events(run["id"])}
            seen = {event.id: event.type for event in follower.seen if event.type != "message.delta"}
            assert "iteration.started" in seen.values()
            assert seen == {seq: kind for seq, kind in whole.items() if kind != "message.delta"}
