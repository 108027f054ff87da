import asyncio
import ipaddress
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from standardwebhooks.webhooks import Webhook

from app.infra import ids
from app.infra.errors import Invalid
from app.loop.messages import ToolCall, ToolOutcome, ToolResult
from app.outbound.address_guard import AddressGuard
from app.outbound.sender import Answer, Sender
from app.outbound.signing import new_secret
from app.tools import webhook
from app.tools.answers import result_of
from app.tools.headers import check_headers
from app.tools.webhook import RunIdentity, WebhookTarget, call_webhook, exchange, request_body
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
    async with Sender(AddressGuard((ipaddress.ip_network("127.0.0.0/8"),))) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "PAUSE_SECONDS", 0.001)


def target(url: str, **fields: Any) -> WebhookTarget:
    return replace(WebhookTarget("find", url, (SECRET,)), **fields)


def answer(body: bytes | str | object, status: int = 200, content_type: str | None = "application/json") -> Answer:
    raw = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
    return Answer(status, {} if content_type is None else {"content-type": content_type}, raw, 0.01)


def read(body: bytes | str | object, status: int = 200, content_type: str | None = "application/json") -> ToolResult:
    return result_of("find", answer(body, status, content_type))


def refusal(body: bytes | str | object, status: int = 422, content_type: str | None = "application/json") -> str:
    found = read(body, status, content_type)
    assert found.outcome is ToolOutcome.ERROR
    assert list(found.result) == ["error"]
    return str(found.result["error"])


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
        async with Sender(AddressGuard()) as strict, WebhookServer() as server:
            await self.check(strict, target(server.url), "not public")
            assert server.connections == 0

    async def test_an_answer_over_two_mebibytes(self, sender: Sender) -> None:
        async with WebhookServer(Reply(body=b"x" * (2 * 1024 * 1024 + 1))) as server:
            await self.check(sender, target(server.url), "too_large", 200)

    async def test_no_tls_where_it_is_wanted(self, sender: Sender) -> None:
        async with WebhookServer() as server:
            await self.check(sender, target(server.url.replace("http:", "https:")), "tls")

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


class TestSuccess:
    @pytest.mark.parametrize(
        ("body", "content_type", "expected"),
        [
            ('{"items": [1]}', "application/json", {"items": [1]}),
            ('{"items": [1]}', "application/vnd.api+json; charset=utf-8", {"items": [1]}),
            ('{"items": [1]}', "text/html; charset=UTF-8", {"items": [1]}),
            ('{"items": [1]}', None, {"items": [1]}),
            (b'\xef\xbb\xbf{"a": "\xc3\xa9"}', "application/json", {"a": "é"}),
            ('{"a": "é"}'.encode("utf-16"), "application/json", {"a": "é"}),
            ('{"a": "é"}'.encode("latin-1"), "application/json; charset=iso-8859-1", {"a": "é"}),
            ('{"a": "é"}'.encode("latin-1"), "application/json", {"a": "é"}),
            ("こんにちは".encode("shift_jis"), "text/plain; charset=Shift_JIS", {"content": "こんにちは"}),
            (b"caf\xe9", "text/plain; charset=utf-8", {"content": "caf\ufffd"}),
            ("plain words", "text/plain", {"content": "plain words"}),
            ("42", "text/plain", {"content": "42"}),
            ("<p>Hello</p>", "text/html", {"content": "<p>Hello</p>"}),
            ("{broken", "application/json", {"content": "{broken"}),
            ("x", "text/plain; charset=unicode_escape", {"content": "x"}),
            ("x", "text/plain; charset=hex", {"content": "x"}),
            ("x", "text/plain; charset=no-such", {"content": "x"}),
            (b"\x89PNG\x00\xff", "image/png", {"content": "(image/png, 6 bytes)"}),
            ('"just text"', "application/json", "just text"),
            ("42", "application/json", 42),
            ("[1, 2]", "application/json", [1, 2]),
            ("null", "application/json", None),
            ("", "application/json", {"ok": True}),
            ("", None, {"ok": True}),
            (" \r\n", "text/plain", {"ok": True}),
            (b"\xef\xbb\xbf", "application/json", {"ok": True}),
            ('{"error": "none found"}', "application/json", {"error": "none found"}),
        ],
    )
    def test_json_is_the_result_other_text_is_content_and_nothing_is_ok(
        self, body: bytes | str, content_type: str | None, expected: Any
    ) -> None:
        found = read(body, 200, content_type)
        assert (found.result, found.outcome, found.status) == (expected, ToolOutcome.OK, 200)

    @pytest.mark.parametrize("status", [200, 201, 203, 204, 206, 226])
    def test_every_2xx_but_202_is_a_success(self, status: int) -> None:
        assert read("", status).result == {"ok": True}

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            ('{"x": NaN, "y": [Infinity, -Infinity, 1e999]}', {"x": None, "y": [None, None, None]}),
            ('{"a\\u0000": "b\\u0000c"}', {"a": "bc"}),
            ('{"a": "\\ud83d", "b": "\\ud83d\\ude00"}', {"a": "\ufffd", "b": "😀"}),
            ('{"a": 1, "a": 2}', {"a": 2}),
            ('{"a": ' + "9" * 5000 + "}", {"a": None}),
            ('{"a": 18446744073709551616}', {"a": 1.8446744073709552e19}),
        ],
    )
    def test_what_nobody_could_store_or_send_on_is_mended(self, body: str, expected: Any) -> None:
        found = read(body)
        assert found.result == expected
        assert json.dumps(found.result, allow_nan=False).encode()

    @pytest.mark.parametrize("levels", [65, 900, 2_000, 100_000])
    def test_what_nests_deeper_than_64_is_a_failure(self, levels: int) -> None:
        for body in ("[" * levels + "]" * levels, '{"a":' * levels + "1" + "}" * levels):
            found = read(body)
            assert (found.result, found.outcome) == (UNAVAILABLE, ToolOutcome.FAILED)
            assert "nested deeper" in (found.cause or "")
        assert read("[" * 64 + "]" * 64).outcome is ToolOutcome.OK

    def test_brackets_that_are_no_json_are_a_failure_too_since_nobody_can_tell(self) -> None:
        assert read("[" * 100_000).outcome is ToolOutcome.FAILED

    def test_an_asynchronous_answer_is_not_supported_yet(self) -> None:
        found = read("", 202)
        assert (found.result, found.outcome, found.status) == (UNAVAILABLE, ToolOutcome.FAILED, 202)
        assert found.cause == "asynchronous answers are not supported yet"


class TestRefusals:
    @pytest.mark.parametrize("status", [400, 404, 409, 422])
    def test_400_404_409_and_422_are_told_to_the_model(self, status: int) -> None:
        assert refusal({"error": "No such city."}, status) == "No such city."
        assert refusal("", status) == f"The tool find refused the call ({status})."

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            ({"error": "No such city."}, "No such city."),
            ({"message": "No such city."}, "No such city."),
            ({"detail": "No such city."}, "No such city."),
            ({"errors": ["No such city.", "No such date."]}, "No such city.; No such date."),
            ({"error": "first told", "message": "second told"}, "first told"),
            ({"error": {"code": "x", "message": "No such city."}}, "No such city."),
            ({"error": None, "message": "No such city."}, "No such city."),
            ({"error": True, "message": "No such city."}, "No such city."),
            ({"statusCode": 400, "message": ["a is bad", "b is bad"], "error": "Bad Request"}, "Bad Request: a is bad; b is bad"),
            ({"error": "invalid_city", "message": "No such city."}, "invalid_city: No such city."),
            (
                {"message": "The given data was invalid.", "errors": {"city": ["Is required.", "Is short."], "max": ["No."]}},
                "The given data was invalid.: city: Is required.; Is short.; max: No.",
            ),
            (
                {"detail": [{"type": "missing", "loc": ["body", "city"], "msg": "Field required", "input": {}}]},
                "body.city: Field required",
            ),
            (
                {"type": "about:blank", "title": "Not Found", "status": 404, "detail": "No city 7.", "instance": "/x"},
                "No city 7.",
            ),
            ({"type": "https://x.test/e", "title": "Out of stock", "status": 409}, "Out of stock"),
            (
                {"errors": [{"title": "Bad", "detail": "Is short", "source": {"pointer": "/data/city"}}]},
                "/data/city: Is short",
            ),
            ("No such city.", "No such city."),
            (["a", "b"], "a; b"),
        ],
    )  # fmt: skip
    def test_the_text_is_found_where_frameworks_put_it(self, body: Any, expected: str) -> None:
        assert refusal(json.dumps(body)) == expected

    @pytest.mark.parametrize(
        ("body", "content_type"),
        [
            ("No such city.", "text/plain"),
            ("No such city.\n", "text/html; charset=UTF-8"),
            ("No such city.", None),
            ('"No such city."', "application/json"),
        ],
    )
    def test_a_plain_text_is_that_text(self, body: str, content_type: str | None) -> None:
        assert refusal(body, 404, content_type) == "No such city."

    @pytest.mark.parametrize(
        ("body", "content_type"),
        [
            ("<!DOCTYPE html><html><body>Not found</body></html>", "text/html"),
            ("<html><h1>404</h1></html>", "text/plain"),
            ("<?xml version='1.0'?><e/>", "application/xml"),
            ({}, "application/json"),
            ({"error": ""}, "application/json"),
            ({"error": "<html>oops</html>"}, "application/json"),
            ({"code": 17}, "application/json"),
            ({"type": "about:blank", "title": "Not Found", "status": 404}, "application/problem+json"),
            ("null", "application/json"),
            ("false", "application/json"),
            (" ", "text/plain"),
        ],
    )
    def test_without_a_usable_text_it_is_a_plain_sentence(self, body: Any, content_type: str) -> None:
        assert refusal(body, 404, content_type) == "The tool find refused the call (404)."

    def test_it_is_at_most_2000_characters(self) -> None:
        for body in ({"error": "é" * 5000}, {"errors": {f"field{n}": ["x" * 500] for n in range(500)}}):
            text = refusal(body)
            assert len(text) == 2000
            assert text.endswith("…")
        assert refusal({"error": "x" * 2000}) == "x" * 2000
        assert len(refusal("y" * 3000, 400, "text/plain")) == 2000

    def test_a_body_that_nests_without_end_is_no_text(self) -> None:
        body: Any = "x"
        for _ in range(60):
            body = {"error": body}
        assert refusal(body) == "The tool find refused the call (422)."
        assert read("[" * 100_000, 422).outcome is ToolOutcome.FAILED


class TestWhatOnlyPeopleCanMend:
    @pytest.mark.parametrize("status", [300, 401, 402, 403, 405, 406, 408, 410, 413, 415, 418, 429, 451, 500, 501, 505, 599])
    def test_the_model_reads_one_sentence_and_the_rest_is_for_log_and_trace(self, status: int) -> None:
        found = read({"message": "database on db-7 is down"}, status)
        assert (found.result, found.outcome, found.status) == (UNAVAILABLE, ToolOutcome.FAILED, status)
        assert f"answered {status}" in (found.cause or "")
        assert "db-7" in (found.cause or "")

    def test_a_long_page_is_cut_in_the_cause(self) -> None:
        assert len(read("x " * 100_000, 500, "text/html").cause or "") < 600


class TestHeadersAtRegistration:
    def test_ordinary_ones_are_kept_as_they_are(self) -> None:
        headers = {"Authorization": "Bearer sk-1", "X-Tenant": "a b\tc", "Cookie": "a=1"}
        assert check_headers(headers) == headers
        assert check_headers({}) == {}

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("X-Key", "sécret"), ("X-Key", "secret\n"), ("X-Key", "secret\r\nHost: x"), ("X-Key", " secret"),
            ("X-Key", "secret "), ("X-Key", "secret\x00"), ("X-Key", "secret\x7f"), ("X-Key", ""), ("X-Key", 5),
            ("X-Key", None), ("X-Key", "secret" * 1000), ("X Key", "secret"), ("", "secret"), ("X:Key", "secret"),
            ("X-Ké", "secret"), ("X\n", "secret"), ("x" * 101, "secret"),
            ("Host", "secret"), ("content-length", "secret"), ("Content-Type", "secret"), ("Transfer-Encoding", "secret"),
            ("Connection", "secret"), ("Webhook-Id", "secret"), ("webhook-signature", "secret"), ("IDEMPOTENCY-KEY", "secret"),
            ("Rondo-Run", "secret"), ("rondo-anything", "secret"), ("Accept-Encoding", "secret"), ("Expect", "secret"),
            ("Upgrade", "secret"), ("TE", "secret"), ("Proxy-Authorization", "secret"), ("User-Agent", "secret"),
        ],
    )  # fmt: skip
    def test_one_that_cannot_be_sent_is_refused_by_name_without_its_value(self, name: str, value: Any) -> None:
        with pytest.raises(Invalid) as caught:
            check_headers({"X-Good": "1", name: value})
        assert caught.value.status == 422
        (error,) = caught.value.extra["errors"]
        assert error["loc"] == ["body", "headers", name[:100]]
        assert "secret" not in repr(caught.value.extra) + str(caught.value)

    def test_one_name_in_two_spellings_is_refused(self) -> None:
        with pytest.raises(Invalid, match="not valid") as caught:
            check_headers({"X-Key": "1", "x-key": "2"})
        assert caught.value.extra["errors"] == [{"loc": ["body", "headers", "x-key"], "msg": "the header is given twice"}]

    def test_they_are_limited_in_number_and_size(self) -> None:
        with pytest.raises(Invalid):
            check_headers({f"x-{n}": "1" for n in range(31)})
        with pytest.raises(Invalid):
            check_headers({f"x-{n}": "y" * 3_900 for n in range(5)})
