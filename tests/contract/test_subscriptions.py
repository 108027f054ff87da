"""Subscriptions: what is told of runs, to whom, how often and in which order (contract, section 9)."""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import httpx
import pytest

from app.infra.database import Database
from app.infra.settings import Settings
from app.process import Process, open_process
from tests.api import TENANT, Api, TestTools, call
from tests.conftest import serving
from tests.contract.summing import until
from tests.contract.test_doors import problem
from tests.contract.test_recovery import database_url, fleet_on, template
from tests.tools_app import Held, Hook, Received, Reply

__all__ = ["template"]
ENDS = ["run.completed", "run.incomplete", "run.failed", "run.cancelled"]


async def subscribed(api: Api, hook: Hook, *events: str, **fields: Any) -> dict[str, Any]:
    body = {"url": hook.url, "events": list(events or ENDS), **fields}
    made: dict[str, Any] = await api.post("/v1/subscriptions", body)
    hook.tool = made
    return made


def receiver(api: Api, test_tools: TestTools, *answers: Any, name: str = "told") -> Hook:
    return test_tools.hook(f"{api.workspace_id}/{name}", *answers)


def is_signed(request: Received, secret: str) -> bool:
    """As Standard Webhooks says, by our own reckoning."""
    named = request.headers
    signed = b".".join((named["webhook-id"].encode(), named["webhook-timestamp"].encode(), request.body))
    key = base64.b64decode(secret.removeprefix("whsec_"))
    mac = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return f"v1,{mac}" in named["webhook-signature"].split()


async def deliveries(api: Api, subscription: dict[str, Any], query: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await api.get(f"/v1/subscriptions/{subscription['id']}/deliveries{query}"))["data"]
    return found


async def settled(api: Api, subscription: dict[str, Any], count: int, status: str = "delivered") -> list[dict[str, Any]]:
    async def are() -> bool:
        return len(await deliveries(api, subscription, f"?status={status}")) >= count

    await until(are, 30)
    return await deliveries(api, subscription, f"?status={status}")


async def make_due(migrated: Database, subscription: dict[str, Any]) -> None:
    """The pause before the next try is over."""
    await migrated.pool.execute(
        "UPDATE deliveries SET next_attempt_at = now() WHERE subscription_id = $1 AND status = 'pending'", subscription["id"]
    )


@pytest.fixture
async def process(settings: Settings) -> AsyncIterator[Process]:
    """One whose deliverer works when it is told to."""
    async with open_process(settings) as process:
        yield process
        await process.deliverer.stop()


class TestWhatIsTold:
    async def test_the_end_of_a_run_is_told_signed_with_the_run_as_the_api_shows_it(
        self, api: Api, test_tools: TestTools
    ) -> None:
        hook = receiver(api, test_tools)
        made = await subscribed(api, hook, headers={"X-Team": "blue"})
        run = await api.run(await api.new_session(), "Hello.")
        await hook.received()
        (told,) = hook.requests
        assert is_signed(told, made["secret"])
        assert told.json["type"] == "run.completed"
        assert told.json["data"] == {"run": await api.get(f"/v1/runs/{run['id']}")}
        assert (told.headers["x-team"], told.headers["rondo-run"], told.headers["rondo-attempt"]) == ("blue", run["id"], "1")
        (delivery,) = await settled(api, made, 1)
        assert (delivery["id"], delivery["event"], delivery["run_id"]) == (
            told.headers["webhook-id"], "run.completed", run["id"],
        )  # fmt: skip
        assert (delivery["attempts"], delivery["last_error"]) == (1, None)

    @pytest.mark.parametrize(
        ("script", "fields", "event"),
        [
            (["Hi."], {}, "run.completed"),
            ([call("none"), "never"], {"max_iterations": 1}, "run.incomplete"),
            ([], {}, "run.failed"),
        ],
    )
    async def test_each_end_has_its_name(
        self, api: Api, test_tools: TestTools, script: list[Any], fields: dict[str, Any], event: str
    ) -> None:
        hook = receiver(api, test_tools)
        await subscribed(api, hook)
        await api.run(await api.new_session(), *script, **fields)
        await hook.received()
        assert [request.json["type"] for request in hook.requests] == [event]

    async def test_a_run_that_waits_and_is_then_cancelled_is_told_in_that_order_as_it_was(
        self, api: Api, test_tools: TestTools
    ) -> None:
        hook = receiver(api, test_tools)
        made = await subscribed(api, hook, "run.waiting", "run.cancelled")
        await test_tools.host(api, "pay", {"paid": True}, requires_approval=True)
        run = await api.run(await api.new_session(), call("pay", {"sum": 5}), "never")
        await api.post(f"/v1/runs/{run['id']}/cancel", status=200)
        await settled(api, made, 2)
        waiting, ended = (request.json for request in hook.requests)
        assert (waiting["type"], ended["type"]) == ("run.waiting", "run.cancelled")
        assert waiting["data"]["run"] == run
        assert ended["data"]["run"] == await api.get(f"/v1/runs/{run['id']}")

    async def test_usage_is_told_without_a_word_of_what_was_said(self, api: Api, test_tools: TestTools) -> None:
        hook = receiver(api, test_tools)
        await subscribed(api, hook, "usage.recorded")
        usage = {"input_tokens": 7, "output_tokens": 3}
        run = await api.run(await api.new_session(), {"text": "SECRETWORD", "usage": usage})
        await hook.received()
        (told,) = hook.requests
        assert told.json["data"]["usage"] == run["usage"]
        assert (told.json["data"]["run_id"], told.json["data"]["tenant"]) == (run["id"], TENANT)
        assert b"SECRETWORD" not in told.body

    async def test_a_subscriber_reads_values_and_the_outbox_holds_tokens(
        self, api: Api, test_tools: TestTools, migrated: Database
    ) -> None:
        hook = receiver(api, test_tools)
        made = await subscribed(api, hook, "run.waiting", "run.completed")
        await test_tools.host(api, "mail", {}, requires_approval=True)
        redaction = {"enabled": True, "dictionary": [{"type": "PER", "value": "María García"}]}
        session = await api.new_session(redaction=redaction)
        run = await api.run(session, call("mail", {"to": "«PER_1»"}), "A «PER_1».", input="Escribe a María García.")
        await api.post(f"/v1/runs/{run['id']}/approvals", {"decisions": [{"call_id": "*", "decision": "approve"}]}, 200)
        await settled(api, made, 2)
        waiting, ended = (request.json["data"]["run"] for request in hook.requests)
        assert waiting["pending"][0]["arguments"] == {"to": "María García"}
        assert ended["output"] == "A María García."
        kept = await migrated.pool.fetch("SELECT changed FROM deliveries WHERE subscription_id = $1", made["id"])
        assert "García" not in str(kept)
        assert "«PER_1»" in str(kept)

    async def test_only_what_was_asked_for_and_only_of_its_workspace(
        self, api: Api, admin: Api, test_tools: TestTools
    ) -> None:
        other = await admin.new_workspace()
        theirs, ours, off = (receiver(one, test_tools, name=name) for one, name in ((other, "a"), (api, "b"), (api, "c")))
        await subscribed(other, theirs)
        made = await subscribed(api, ours, "run.failed")
        await subscribed(api, off, active=False)
        await api.run(await api.new_session(), "Hello.")
        await api.run(await api.new_session())
        await settled(api, made, 1)
        assert [len(hook.requests) for hook in (theirs, ours, off)] == [0, 1, 0]

    async def test_a_run_of_a_child_and_one_without_a_session_are_told_too(self, api: Api, test_tools: TestTools) -> None:
        hook = receiver(api, test_tools)
        made = await subscribed(api, hook)
        await api.new_agent("Child.", name="helper")
        turn = call("agent_helper", {"task": "Help."})
        await api.run(await api.new_session(tools=["agent:helper"]), turn, "Parent.")
        await api.post("/v1/runs", {"tenant": TENANT, "input": "x", "model": "scripted/x", "script": ["Alone."]}, 200)
        await settled(api, made, 3)
        assert {request.json["data"]["run"]["output"] for request in hook.requests} == {"Child.", "Parent.", "Alone."}


class TestTryingAgain:
    async def test_the_same_bytes_and_id_come_again_after_a_pause(
        self, api: Api, test_tools: TestTools, migrated: Database, process: Process
    ) -> None:
        hook = receiver(api, test_tools, Reply(500), Reply(ending="close"), {})
        made = await subscribed(api, hook)
        await api.run(await api.new_session(), "Hello.")
        for count in (2, 3):
            await until(lambda: _failed_once_more(api, made), 30)
            await make_due(migrated, made)
            await process.deliverer.deliver()
            await hook.received(count)
        first, second, third = hook.requests
        assert first.body == second.body == third.body
        assert first.headers["webhook-id"] == second.headers["webhook-id"] == third.headers["webhook-id"]
        assert [request.headers["rondo-attempt"] for request in hook.requests] == ["1", "2", "3"]
        (delivery,) = await settled(api, made, 1)
        assert delivery["attempts"] == 3
        assert (await api.get(f"/v1/subscriptions/{made['id']}"))["status"] == "active"

    async def test_of_one_run_what_comes_later_waits_and_of_others_it_does_not(
        self, api: Api, test_tools: TestTools, migrated: Database, process: Process
    ) -> None:
        def answer(request: Received) -> Reply:
            refused = request.json["type"] == "run.waiting" and request.headers["rondo-attempt"] == "1"
            return Reply(503) if refused else Reply()

        hook = receiver(api, test_tools, answer)
        made = await subscribed(api, hook, "run.waiting", "run.completed")
        await test_tools.host(api, "pay", {"paid": True}, requires_approval=True)
        run = await api.run(await api.new_session(), call("pay"), "Paid.")
        await until(lambda: _failed_once_more(api, made), 30)
        await api.post(f"/v1/runs/{run['id']}/approvals", {"decisions": [{"call_id": "*", "decision": "approve"}]}, 200)
        await api.events(run["id"])
        other = await api.run(await api.new_session(), "Other.")
        await settled(api, made, 1)
        assert [request.json["data"]["run"]["id"] for request in hook.requests] == [run["id"], other["id"]]
        await make_due(migrated, made)
        await process.deliverer.deliver()
        await settled(api, made, 3)
        own = [request.json["type"] for request in hook.requests if request.json["data"]["run"]["id"] == run["id"]]
        assert own == ["run.waiting", "run.waiting", "run.completed"]

    async def test_retry_after_is_obeyed(self, api: Api, test_tools: TestTools, migrated: Database) -> None:
        hook = receiver(api, test_tools, Reply(429, headers={"retry-after": "900"}))
        made = await subscribed(api, hook)
        await api.run(await api.new_session(), "Hello.")
        await until(lambda: _failed_once_more(api, made), 30)
        wait = "SELECT extract(epoch FROM next_attempt_at - now())::float8 FROM deliveries WHERE subscription_id = $1"
        assert 800 < await migrated.pool.fetchval(wait, made["id"]) <= 900

    async def test_after_its_day_it_is_given_up_and_can_be_delivered_by_hand(
        self, api: Api, test_tools: TestTools, migrated: Database, process: Process
    ) -> None:
        hook = receiver(api, test_tools, Reply(500), Reply(500), {})
        made = await subscribed(api, hook)
        await api.run(await api.new_session(), "Hello.")
        await until(lambda: _failed_once_more(api, made), 30)
        old = "UPDATE deliveries SET due_at = now() - interval '23 hours 59 minutes 59 seconds' WHERE subscription_id = $1"
        await migrated.pool.execute(old, made["id"])
        await make_due(migrated, made)
        await process.deliverer.deliver()
        (delivery,) = await settled(api, made, 1, "exhausted")
        assert (delivery["attempts"], delivery["last_status"], delivery["next_attempt_at"]) == (2, 500, None)
        path = f"/v1/subscriptions/{made['id']}/deliveries/{delivery['id']}/redeliver"
        asked = await api.post(path, status=202)
        assert (asked["id"], asked["status"]) == (delivery["id"], "pending")
        await settled(api, made, 1)
        assert hook.requests[2].body == hook.requests[0].body

    async def test_what_came_can_be_sent_once_more_under_its_id(self, api: Api, test_tools: TestTools) -> None:
        hook = receiver(api, test_tools)
        made = await subscribed(api, hook)
        await api.run(await api.new_session(), "Hello.")
        (delivery,) = await settled(api, made, 1)
        await api.post(f"/v1/subscriptions/{made['id']}/deliveries/{delivery['id']}/redeliver", status=202)
        await hook.received(2)
        assert len({request.headers["webhook-id"] for request in hook.requests}) == 1


async def _failed_once_more(api: Api, made: dict[str, Any]) -> bool:
    found = await deliveries(api, made)
    return bool(found) and all(one["last_error"] for one in found if one["status"] == "pending")


class TestADeadEndpoint:
    @asynccontextmanager
    async def strict(self, settings: Settings, api: Api) -> AsyncIterator[tuple[Api, Process]]:
        """A service that pauses after three failures in a row."""
        changed = settings.model_copy(update={"subscription_failures": 3, "subscription_failing_seconds": 0.0})
        async with (
            serving(changed) as url,
            httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http,
            open_process(changed) as process,
        ):
            yield Api(http, api.key, api.workspace_id), process
            await process.deliverer.stop()

    async def test_it_is_paused_and_shown_and_what_happens_meanwhile_is_kept_until_a_person_resumes_it(
        self, settings: Settings, api: Api, test_tools: TestTools, migrated: Database
    ) -> None:
        hook = receiver(api, test_tools, *[Reply(500)] * 3, {})
        async with self.strict(settings, api) as (here, process):
            made = await subscribed(here, hook)
            await here.run(await here.new_session(), "First.")
            for count in (1, 2, 3):
                await hook.received(count)
                await until(lambda: _failed_once_more(here, made), 30)
                await make_due(migrated, made)
                await process.deliverer.deliver()
            await until(lambda: _is_paused(here, made), 30)
            shown = await here.get(f"/v1/subscriptions/{made['id']}")
            assert (shown["status"], shown["paused_reason"], shown["active"]) == ("paused", "failing", True)
            assert shown["last_error"] == "answered 500"
            assert shown["failing_since"] is not None
            await here.run(await here.new_session(), "Second.")
            await process.deliverer.deliver()
            assert len(hook.requests) == 3, "nothing is sent to a paused one"
            resumed = await here.call("PATCH", f"/v1/subscriptions/{made['id']}", {"active": True})
            assert resumed.json()["status"] == "active"
            await make_due(migrated, made)
            await process.deliverer.deliver()
            await settled(here, made, 2)
            assert {request.json["data"]["run"]["output"] for request in hook.requests[3:]} == {"First.", "Second."}

    async def test_gone_pauses_it_at_once_and_a_delivery_by_hand_that_comes_resumes_it(
        self, api: Api, test_tools: TestTools
    ) -> None:
        hook = receiver(api, test_tools, Reply(410), {})
        made = await subscribed(api, hook)
        await api.run(await api.new_session(), "Hello.")
        await until(lambda: _is_paused(api, made), 30)
        assert (await api.get(f"/v1/subscriptions/{made['id']}"))["paused_reason"] == "gone"
        (delivery,) = await deliveries(api, made)
        await api.post(f"/v1/subscriptions/{made['id']}/deliveries/{delivery['id']}/redeliver", status=202)
        await settled(api, made, 1)
        assert (await api.get(f"/v1/subscriptions/{made['id']}"))["status"] == "active"

    async def test_one_that_hangs_holds_up_nobody_else(self, api: Api, test_tools: TestTools) -> None:
        hanging = Held()
        dead, alive = receiver(api, test_tools, hanging, name="dead"), receiver(api, test_tools, name="alive")
        await subscribed(api, dead)
        made = await subscribed(api, alive)
        for _ in range(6):
            await api.run(await api.new_session(), "Hello.")
        await settled(api, made, 6)
        assert len(dead.requests) <= 4, "a few at once"
        hanging.gate.set()

    async def test_what_waits_for_a_paused_one_is_given_up_after_its_day(
        self, api: Api, test_tools: TestTools, migrated: Database, process: Process
    ) -> None:
        hook = receiver(api, test_tools, Reply(410))
        made = await subscribed(api, hook)
        await api.run(await api.new_session(), "Hello.")
        await until(lambda: _is_paused(api, made), 30)
        old = "UPDATE deliveries SET due_at = now() - interval '25 hours' WHERE subscription_id = $1"
        await migrated.pool.execute(old, made["id"])
        await process.deliverer.sweep()
        assert [one["status"] for one in await deliveries(api, made)] == ["exhausted"]


async def _is_paused(api: Api, made: dict[str, Any]) -> bool:
    return bool((await api.get(f"/v1/subscriptions/{made['id']}"))["status"] == "paused")


class TestNothingIsLost:
    async def test_killed_between_the_end_and_the_sending_another_process_tells_it_and_nobody_twice_on_purpose(
        self, settings: Settings, template: str, test_tools: TestTools
    ) -> None:
        async with fleet_on(settings, "subscriptions_killed", template) as fleet:
            first = await fleet.start()
            api = await first.admin.new_workspace()
            held = Held()
            hook = receiver(api, test_tools, held, {})
            await subscribed(api, hook)
            run = await api.run(await api.new_session(), "Hello.")
            await hook.received()
            await first.kill()
            second = await fleet.start()
            await settled_rows(settings, "subscriptions_killed", "UPDATE deliveries SET claimed_until = now()")
            await hook.received(2)
            one, other = hook.requests
            assert (one.body, one.headers["webhook-id"]) == (other.body, other.headers["webhook-id"])
            assert one.json["data"]["run"]["id"] == run["id"]
            held.gate.set()
            assert second.process.returncode is None

    async def test_two_processes_send_each_once(self, settings: Settings, api: Api, test_tools: TestTools) -> None:
        hook = receiver(api, test_tools)
        made = await subscribed(api, hook)
        async with open_process(settings) as one, open_process(settings) as other:
            for _ in range(10):
                await api.run(await api.new_session(), "Hello.")
                await asyncio.gather(one.deliverer.deliver(), other.deliverer.deliver())
            await settled(api, made, 10)
            await asyncio.gather(one.deliverer.stop(), other.deliverer.stop())
        ids = [request.headers["webhook-id"] for request in hook.requests]
        assert len(ids) == len(set(ids)) == 10

    async def test_an_erased_run_is_told_no_more(
        self, api: Api, test_tools: TestTools, migrated: Database, process: Process
    ) -> None:
        hook = receiver(api, test_tools, Reply(500))
        made = await subscribed(api, hook)
        session = await api.new_session()
        await api.run(session, "Hello.")
        await until(lambda: _failed_once_more(api, made), 30)
        assert (await api.call("DELETE", f"/v1/sessions/{session}")).status_code == 204
        assert await deliveries(api, made) == []
        await process.deliverer.sweep()
        assert len(hook.requests) == 1


async def settled_rows(settings: Settings, name: str, statement: str) -> None:
    """Run a statement in the database of a fleet."""
    connection = await asyncpg.connect(database_url(settings.database_url or "", name))
    await connection.execute(statement)
    await connection.close()


class TestOneSubscription:
    async def test_it_is_shown_without_its_secret_and_header_values(self, api: Api, test_tools: TestTools) -> None:
        made = await subscribed(api, receiver(api, test_tools), headers={"Authorization": "Bearer planted-value"})
        assert made["secret"].startswith("whsec_")
        shown = await api.get(f"/v1/subscriptions/{made['id']}")
        assert shown == {name: value for name, value in made.items() if name != "secret"}
        assert shown["headers"] == {"Authorization": "********"}
        assert (await api.get("/v1/subscriptions"))["data"] == [shown]

    async def test_its_secret_is_rotated_and_both_sign_for_a_day(self, api: Api, test_tools: TestTools) -> None:
        hook = receiver(api, test_tools)
        made = await subscribed(api, hook)
        rotated = await api.post(f"/v1/subscriptions/{made['id']}/rotate-secret", status=200)
        await api.run(await api.new_session(), "Hello.")
        await hook.received()
        (told,) = hook.requests
        assert rotated["secret"] != made["secret"]
        assert is_signed(told, made["secret"])
        assert is_signed(told, rotated["secret"])

    async def test_it_is_changed_field_by_field_and_deleted(self, api: Api, test_tools: TestTools) -> None:
        made = await subscribed(api, receiver(api, test_tools), headers={"X-A": "1"})
        path = f"/v1/subscriptions/{made['id']}"
        changed = (await api.call("PATCH", path, {"events": ["run.failed"], "headers": None})).json()
        assert (changed["events"], changed["headers"], changed["url"]) == (["run.failed"], None, made["url"])
        assert (await api.call("PATCH", path, {"active": False})).json()["status"] == "inactive"
        assert (await api.call("DELETE", path)).status_code == 204
        problem(await api.call("GET", path), 404)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"url": "ftp://example.com/"}, {"url": "http://10.0.0.1/x"}, {"url": ""}, {"events": []}, {"events": ["run.no"]},
            {"events": "run.failed"}, {"headers": {"Host": "x"}}, {"headers": {"webhook-id": "x"}}, {"active": None},
            {"secret": "x"},
        ],
    )  # fmt: skip
    async def test_what_is_wrong_is_refused_and_nothing_kept(self, api: Api, wrong: dict[str, Any]) -> None:
        body = {"url": "http://127.0.0.1:9/x", "events": ["run.failed"], **wrong}
        problem(await api.call("POST", "/v1/subscriptions", body), 422)
        assert (await api.get("/v1/subscriptions"))["data"] == []

    async def test_the_same_key_gives_the_first_answer_with_the_same_secret(self, api: Api, test_tools: TestTools) -> None:
        body = {"url": receiver(api, test_tools).url, "events": ["run.failed"]}
        first, second = [await api.call("POST", "/v1/subscriptions", body, idempotency_key="k1") for _ in range(2)]
        assert first.json() == second.json()
        assert len((await api.get("/v1/subscriptions"))["data"]) == 1

    async def test_a_delivery_that_is_not_there_is_a_404(self, api: Api, test_tools: TestTools) -> None:
        made = await subscribed(api, receiver(api, test_tools))
        path = f"/v1/subscriptions/{made['id']}/deliveries"
        for unknown in ("dlv_0", "dlv_" + "0" * 32):
            problem(await api.call("POST", f"{path}/{unknown}/redeliver"), 404)

    async def test_deliveries_come_in_pages_the_newest_first(self, api: Api, test_tools: TestTools) -> None:
        made = await subscribed(api, receiver(api, test_tools))
        runs = [(await api.run(await api.new_session(), "Hello."))["id"] for _ in range(3)]
        path = f"/v1/subscriptions/{made['id']}/deliveries?limit=2"
        page = await api.get(path)
        rest = await api.get(f"{path}&after={page['next']}")
        assert [one["run_id"] for one in [*page["data"], *rest["data"]]] == runs[::-1]
        assert rest["next"] is None
