import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from standardwebhooks.webhooks import Webhook

from app.infra import ids
from app.infra.errors import LeaseLost
from app.infra.pause import looking
from app.loop.messages import ToolCall, ToolOutcome
from app.outbound.address_guard import AddressGuard
from app.outbound.sender import Sender
from app.outbound.signing import new_secret
from app.tools import webhook
from app.tools.webhook import RunIdentity, WebhookTarget, call_webhook, exchange, request_body
from tests.outbound.sending import sender as sender_to_this_machine
from tests.outbound.sending import usual_tls
from tests.tools.webhook_server import Reply, WebhookServer

SECRET, OLD_SECRET = new_secret(), new_secret()
RUN = ids.new(ids.RUN)
CALL = ToolCall(ids.derived(ids.CALL, RUN, 1, 0), "find", {"city": "Ávila «x»", "max": 5}, "")
IDENTITY = RunIdentity(
    run_id=RUN,
    session_id="ses_1",
    agent_id=None,
    tenant={"type": "organization", "id": "42"},
    subject={"type": "contact", "id": "7"},
    member=None,
    context={"user": 3, "locale": "es"},
)
UNAVAILABLE = {"error": "The tool find is temporarily unavailable."}


@pytest_asyncio.fixture
async def sender() -> AsyncIterator[Sender]:
    async with sender_to_this_machine() as opened:
        yield opened


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "PAUSE_SECONDS", 0.001)


def target(url: str, **fields: Any) -> WebhookTarget:
    return replace(WebhookTarget("find", url, (SECRET,)), **fields)


class TestTheRequest:
    pytestmark = pytest.mark.asyncio

    async def test_it_is_a_tool_call_with_what_the_model_wrote_apart_from_what_the_backend_said(
        self, sender: Sender
    ) -> None:
        async with WebhookServer() as server:
            await call_webhook(sender, target(server.url), IDENTITY, CALL)
        body = server.requests[0].json
        assert body["type"] == "tool.call"
        assert body["data"] == {
            "tool": "find",
            "call_id": CALL.id,
            "arguments": {"city": "Ávila «x»", "max": 5},
            "context": {"user": 3, "locale": "es"},
            "tenant": {"type": "organization", "id": "42"},
            "subject": {"type": "contact", "id": "7"},
            "member": None,
            "session_id": "ses_1",
            "run_id": RUN,
            "agent_id": None,
        }

    async def test_its_signature_is_over_the_exact_bytes_and_the_headers_name_call_run_and_attempt(
        self, sender: Sender
    ) -> None:
        async with WebhookServer() as server:
            await call_webhook(sender, target(server.url, secrets=(SECRET, OLD_SECRET)), IDENTITY, CALL)
        (request,) = server.requests
        for secret in (SECRET, OLD_SECRET):
            assert Webhook(secret).verify(request.body, dict(request.headers)) == request.json
        assert request.headers["webhook-id"] == request.headers["idempotency-key"] == CALL.id
        assert (request.headers["rondo-run"], request.headers["rondo-attempt"]) == (RUN, "1")
        assert request.headers["content-type"] == "application/json"
        assert request.headers["user-agent"].startswith("Rondo")

    async def test_the_caller_s_headers_go_along_and_cannot_replace_ours(self, sender: Sender) -> None:
        headers = {
            "X-Api-Key": "k-123456",
            "Cookie": "a=1",
            "Webhook-Id": "mine",
            "CONTENT-TYPE": "text/x",
            "Rondo-Run": "no",
        }
        async with WebhookServer() as server:
            await call_webhook(sender, target(server.url, headers=headers), IDENTITY, CALL)
        (request,) = server.requests
        assert (request.headers["x-api-key"], request.headers["cookie"]) == ("k-123456", "a=1")
        assert request.headers["webhook-id"] == CALL.id
        assert request.headers["rondo-run"] == RUN
        assert request.head.lower().count(b"content-type:") == 1
        Webhook(SECRET).verify(request.body, dict(request.headers))

    async def test_what_went_over_the_wire_can_be_shown(self, sender: Sender) -> None:
        async with WebhookServer(Reply(body={"items": []})) as server:
            shown = await exchange(sender, target(server.url), IDENTITY, CALL)
        assert shown.request_body == server.requests[0].body
        assert shown.request_headers["webhook-id"] == CALL.id
        assert shown.answer is not None
        assert (shown.answer.status, shown.result.result, shown.result.attempts) == (200, {"items": []}, 1)


class TestTheBytes:
    def test_they_are_the_same_when_another_process_makes_the_call_again_from_the_database(self) -> None:
        call = replace(CALL, arguments={"b": 1, "a": {"d": 1e22, "c": 2}})
        loaded = replace(CALL, arguments={"a": {"c": 2, "d": 10**22}, "b": 1})
        other = replace(IDENTITY, context={"locale": "es", "user": 3}, tenant={"id": "42", "type": "organization"})
        assert request_body("find", IDENTITY, call) == request_body("find", other, loaded)

    def test_the_timestamp_is_that_of_the_run_unless_one_is_given(self) -> None:
        first = json.loads(request_body("find", IDENTITY, CALL))["timestamp"]
        assert first.endswith("Z")
        assert json.loads(request_body("find", IDENTITY, CALL))["timestamp"] == first
        given = json.loads(request_body("find", IDENTITY, CALL, "2026-01-31T12:00:00.000Z"))
        assert given["timestamp"] == "2026-01-31T12:00:00.000Z"
        assert json.loads(request_body("find", IDENTITY, replace(CALL, id="call_x")))["timestamp"].endswith("Z")

    def test_what_no_reader_would_take_is_not_in_them(self) -> None:
        call = replace(CALL, arguments={"a": "x\x00y\ud800", "n": float("nan"), "big": 10**400, "k\x00": 1})
        data = json.loads(request_body("find", IDENTITY, call))["data"]
        assert data["arguments"] == {"a": "xy\ufffd", "n": None, "big": None, "k": 1}


class TestTryingAgain:
    pytestmark = pytest.mark.asyncio

    @pytest.mark.parametrize(
        "first",
        [Reply(502), Reply(503), Reply(504), Reply(ending="close"), Reply(ending="reset"), Reply(body="xx", ending="cut")],
    )
    async def test_a_failed_connection_502_503_and_504_are_tried_once_more_with_the_same_bytes_and_key(
        self, sender: Sender, first: Reply, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        moments = iter([1_700_000_000.0, 1_700_000_400.0])
        monkeypatch.setattr(webhook, "time", lambda: next(moments))
        async with WebhookServer(first, Reply(body={"n": 1})) as server:
            result = await call_webhook(sender, target(server.url), IDENTITY, CALL)
        one, two = server.requests
        assert (result.result, result.outcome, result.attempts, result.status) == ({"n": 1}, ToolOutcome.OK, 2, 200)
        assert one.body == two.body
        for name in ("webhook-id", "idempotency-key", "rondo-run"):
            assert one.headers[name] == two.headers[name]
        assert [request.headers["rondo-attempt"] for request in server.requests] == ["1", "2"]
        assert [request.headers["webhook-timestamp"] for request in server.requests] == ["1700000000", "1700000400"]
        assert one.headers["webhook-signature"] != two.headers["webhook-signature"]

    async def test_not_when_the_run_is_no_longer_ours_after_the_pause(self, sender: Sender) -> None:
        async def look() -> None:
            raise LeaseLost

        async with WebhookServer(Reply(503), Reply(body={"n": 1})) as server:
            with pytest.raises(LeaseLost), looking(look):
                await call_webhook(sender, target(server.url), IDENTITY, CALL)
        assert len(server.requests) == 1

    @pytest.mark.parametrize("reply", [Reply(503), Reply(ending="close")])
    async def test_it_is_tried_no_third_time(self, sender: Sender, reply: Reply) -> None:
        async with WebhookServer(reply) as server:
            result = await call_webhook(sender, target(server.url), IDENTITY, CALL)
        assert (len(server.requests), result.attempts, result.outcome) == (2, 2, ToolOutcome.FAILED)
        assert result.result == UNAVAILABLE

    @pytest.mark.parametrize("reply", [Reply(502), Reply(503), Reply(504), Reply(ending="close"), Reply(ending="reset")])
    async def test_a_tool_that_is_to_be_called_at_most_once_is(self, sender: Sender, reply: Reply) -> None:
        async with WebhookServer(reply) as server:
            result = await call_webhook(sender, target(server.url, at_most_once=True), IDENTITY, CALL)
        assert (len(server.requests), result.attempts, result.outcome) == (1, 1, ToolOutcome.FAILED)

    async def test_a_tool_that_is_to_be_called_at_most_once_is_never_called_over_a_kept_connection(
        self, sender: Sender
    ) -> None:
        async with WebhookServer() as server:
            for _ in range(2):
                await call_webhook(sender, target(server.url), IDENTITY, CALL)
            await call_webhook(sender, target(server.url, at_most_once=True), IDENTITY, CALL)
        assert [request.connection for request in server.requests] == [1, 1, 2]

    @pytest.mark.parametrize("status", [200, 301, 400, 401, 403, 404, 408, 409, 422, 425, 429, 500, 501, 505])
    async def test_no_other_answer_is_tried_again(self, sender: Sender, status: int) -> None:
        async with WebhookServer(Reply(status)) as server:
            result = await call_webhook(sender, target(server.url), IDENTITY, CALL)
        assert (len(server.requests), result.attempts, result.status) == (1, 1, status)

    async def test_both_attempts_share_one_time_out(self, sender: Sender) -> None:
        async with WebhookServer(Reply(503, delay_seconds=0.15), Reply(ending="hang")) as server:
            result = await call_webhook(sender, target(server.url, timeout_seconds=0.4), IDENTITY, CALL)
        assert (result.outcome, result.attempts, len(server.requests)) == (ToolOutcome.FAILED, 2, 2)
        assert 0.35 < result.seconds < 0.7
        assert result.cause == "timeout: no whole answer within the time-out"

    async def test_a_time_out_is_not_tried_again(self, sender: Sender) -> None:
        async with WebhookServer(Reply(ending="hang")) as server:
            result = await call_webhook(sender, target(server.url, timeout_seconds=0.1), IDENTITY, CALL)
        assert (result.outcome, result.attempts, len(server.requests)) == (ToolOutcome.FAILED, 1, 1)

    async def test_there_is_no_second_attempt_without_time_for_it(
        self, sender: Sender, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(webhook, "PAUSE_SECONDS", 5.0)
        async with WebhookServer(Reply(503)) as server:
            result = await call_webhook(sender, target(server.url, timeout_seconds=1), IDENTITY, CALL)
        assert (result.attempts, result.status) == (1, 503)


class TestFailures:
    pytestmark = pytest.mark.asyncio

    async def check(self, sender: Sender, to: WebhookTarget, cause: str, status: int | None = None) -> None:
        result = await call_webhook(sender, to, IDENTITY, CALL)
        assert (result.result, result.outcome, result.status) == (UNAVAILABLE, ToolOutcome.FAILED, status)
        assert cause in (result.cause or "")

    async def test_nobody_listening(self, sender: Sender) -> None:
        async with WebhookServer() as server:
            url = server.url
        await self.check(sender, target(url), "connection refused")

    async def test_a_refused_address_is_not_contacted(self) -> None:
        async with Sender(AddressGuard(), ssl_context=usual_tls()) as strict, WebhookServer() as server:
            await self.check(strict, target(server.url), "not public")
            assert server.connections == 0

    async def test_an_answer_over_two_mebibytes(self, sender: Sender) -> None:
        async with WebhookServer(Reply(body=b"x" * (2 * 1024 * 1024 + 1))) as server:
            await self.check(sender, target(server.url), "too_large", 200)

    @pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
    async def test_a_redirect_fails_and_the_second_host_is_not_contacted(self, sender: Sender, status: int) -> None:
        async with WebhookServer() as second:
            async with WebhookServer(Reply(status, headers={"location": second.url})) as first:
                await self.check(sender, target(first.url), f"answered {status}", status)
            assert second.connections == 0

    @pytest.mark.parametrize("value", ["é", "sk-secret\n", " sk-secret"])
    async def test_a_header_that_cannot_be_sent_is_in_no_text(self, sender: Sender, value: str) -> None:
        async with WebhookServer() as server:
            result = await call_webhook(sender, target(server.url, headers={"x-key": value}), IDENTITY, CALL)
            assert result.result == UNAVAILABLE
            assert "secret" not in repr(result)
            assert server.connections == 0

    @pytest.mark.parametrize("status", [400, 500])
    async def test_an_error_page_that_shows_the_request_gives_no_secret_away(self, sender: Sender, status: int) -> None:
        def page(request: Any) -> Reply:
            return Reply(status, {"message": f"Bad call with {request.headers['authorization']} and {SECRET}"})

        headers = {"Authorization": "Bearer sk-live-123456"}
        async with WebhookServer(page) as server:
            result = await call_webhook(sender, target(server.url, headers=headers), IDENTITY, CALL)
        assert "Bad call with ********" in f"{result.result}{result.cause}"
        assert "sk-live" not in repr(result)
        assert SECRET not in repr(result)

    async def test_giving_a_call_up_closes_its_connection(self, sender: Sender) -> None:
        async with WebhookServer(Reply(ending="hang")) as server:
            task = asyncio.create_task(call_webhook(sender, target(server.url), IDENTITY, CALL))
            await server.received(1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await server.lost(1)
