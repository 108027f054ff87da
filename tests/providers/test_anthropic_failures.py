"""The Messages API client when things go wrong: errors, drops, stalls, cancellation."""

import asyncio

import pytest

from app.loop.events import MessageDelta, MessageDiscarded
from app.loop.messages import ErrorCode, Message, ModelFailure, Reply
from app.loop.ports import ModelRequest
from app.providers.anthropic import AnthropicClient
from app.providers.client import ModelSettings, ProviderErrorKind
from app.providers.retry import Candidate, RetryingProvider, RetryPolicy
from app.providers.transport import Clocks, http_client
from tests.providers.messages_api import PING, START, STOP, ask, begun, call, events, finished, text
from tests.providers.model_server import Answer, ModelServer, json_answer

pytestmark = pytest.mark.asyncio

UNAVAILABLE = ProviderErrorKind.UNAVAILABLE
OVERLOADED = {
    "type": "error",
    "error": {"details": None, "type": "overloaded_error", "message": "Overloaded"},
    "request_id": "req_x",
}
WHOLE = events(START, *text(0, "fine"), finished("end_turn"), STOP)


@pytest.fixture
async def server():
    async with ModelServer() as running:
        yield running


class TestErrorsInTheStream:
    @pytest.mark.parametrize(("before", "shown"), [([], ""), ([START], ""), ([START, PING, *text(0, "a", "b")[:-1]], "ab")])
    async def test_an_error_event_fails_the_attempt(self, server, before, shown):
        """B01."""
        asked = await ask(server, events(*before, OVERLOADED))
        assert asked.error.kind is UNAVAILABLE
        assert "Overloaded" in asked.error.message
        assert asked.text("text") == shown

    @pytest.mark.parametrize(
        ("error", "kind"),
        [
            ({"type": "api_error", "message": "Internal server error"}, UNAVAILABLE),
            ({"type": "rate_limit_error", "message": "slow down"}, UNAVAILABLE),
            ({"type": "timeout_error", "message": "timed out"}, UNAVAILABLE),
            ({"type": "invalid_request_error", "message": "messages.1: bad"}, ProviderErrorKind.REJECTED),
            ({"type": "invalid_request_error", "message": "prompt is too long: 9 > 8"}, ProviderErrorKind.OVERFLOW),
            ({"type": "authentication_error", "message": "invalid x-api-key"}, ProviderErrorKind.AUTH),
        ],
    )
    @pytest.mark.parametrize("wrap", ["event", "untyped", "whole"])
    async def test_every_kind_of_error_is_classified_wherever_it_stands(self, server, error, kind, wrap):
        """B01, C16."""
        data = {"type": "error", "error": error}
        untyped = Answer([b'data: {"error": %b}\n\n' % str(error).replace("'", '"').encode()])
        answer = {"event": events(data), "untyped": untyped, "whole": json_answer(data)}[wrap]
        assert (await ask(server, answer)).error.kind is kind

    async def test_before_any_delta_it_is_asked_anew_and_there_is_one_answer(self, server):
        """B01."""
        reply, shown = await _retried(server, events(OVERLOADED), WHOLE)
        assert isinstance(reply, Reply)
        assert (reply.text, reply.model, len(reply.attempts)) == ("fine", "anthropic/claude", 2)
        assert shown == [MessageDelta(1, "msg_1", "fine")]

    async def test_after_deltas_the_client_is_told_to_drop_them(self, server):
        """B01."""
        reply, shown = await _retried(server, events(START, *text(0, "a")[:-1], OVERLOADED), WHOLE)
        assert isinstance(reply, Reply)
        assert shown == [MessageDelta(1, "msg_1", "a"), MessageDiscarded(1, "msg_1"), MessageDelta(1, "msg_1", "fine")]

    async def test_a_lasting_overload_is_told_as_unavailable(self, server):
        reply, _ = await _retried(server, events(OVERLOADED), events(OVERLOADED))
        assert isinstance(reply, ModelFailure)
        assert reply.code is ErrorCode.PROVIDER_UNAVAILABLE


async def _retried(server: ModelServer, *answers: Answer):
    server.play(*answers)
    shown = []
    async with http_client() as http:
        client = AnthropicClient(http, provider="anthropic", base_url=server.address, api_key="k")
        candidate = Candidate("anthropic/claude", client, ModelSettings("claude", {}))
        provider = RetryingProvider([candidate], shown.append, RetryPolicy(attempts=2, base_seconds=0.0))
        return await provider.ask(ModelRequest(1, "msg_1", (Message("user", "hi"),))), shown


class TestHttpErrors:
    @pytest.mark.parametrize(
        ("status", "type_", "message", "kind"),
        [
            (400, "invalid_request_error", "messages: bad", "rejected"),
            (400, "invalid_request_error", "prompt is too long: 2113402 tokens > 1000000 maximum", "overflow"),
            (400, "invalid_request_error", "input length and `max_tokens` exceed context limit: 199 + 20 > 200", "overflow"),
            (400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API.", "unavailable"),
            (401, "authentication_error", "invalid x-api-key", "auth"),
            (403, "permission_error", "not yours", "auth"),
            (404, "not_found_error", "model: claude-x", "rejected"),
            (413, "request_too_large", "Request exceeds the maximum size", "overflow"),
            (422, "invalid_request_error", "no", "rejected"),
            (429, "rate_limit_error", "exceeds the rate limit of 40,000 input tokens per minute", "unavailable"),
            (500, "api_error", "Internal server error", "unavailable"),
            (529, "overloaded_error", "Overloaded", "unavailable"),
        ],
    )  # fmt: skip
    async def test_a_status_is_classified_and_asked_once(self, server, status, type_, message, kind):
        """J04, C16."""
        body = {"type": "error", "error": {"type": type_, "message": f"{message} s3cret"}, "request_id": "req_1"}
        asked = await ask(server, json_answer(body, status, Retry_After="7"))
        assert (asked.error.kind, asked.error.status, asked.error.retry_after_seconds) == (kind, status, 7.0)
        assert "s3cret" not in asked.error.message
        assert len(server.requests) == 1

    async def test_a_header_of_the_caller_is_never_told(self, server):
        body = {"type": "error", "error": {"type": "invalid_request_error", "message": "bad header v4lue-of-it"}}
        asked = await ask(server, json_answer(body, 400), headers={"X-Gateway-Key": "v4lue-of-it"})
        assert "v4lue" not in asked.error.message

    async def test_a_key_that_no_header_can_hold_is_never_told(self, server):
        asked = await ask(server, api_key="sé\ncret")
        assert asked.error.kind is ProviderErrorKind.AUTH
        assert "cret" not in asked.error.message

    async def test_an_answer_that_is_no_message_is_a_failure(self, server):
        assert (await ask(server, json_answer({"hello": 1}))).error.kind is UNAVAILABLE
        assert (await ask(server, json_answer([]))).error.kind is UNAVAILABLE


class TestTheEnd:
    @pytest.mark.parametrize("after", [[], [b"event: data\ndata: [DONE]\n\n"]])
    async def test_message_stop_ends_it_although_the_socket_stays_open(self, server, after):
        """B25."""
        async with asyncio.timeout(1), http_client() as http:
            asked = await ask(
                server, events(START, *text(0, "x"), finished("end_turn"), STOP, *after, end="hold"), http=http
            )
            assert asked.reply.text == "x"
            await server.closed_by_client.wait()

    @pytest.mark.parametrize("end", ["finish", "cut", "reset"])
    async def test_a_connection_that_breaks_after_the_stop_reason_takes_nothing_away(self, server, end):
        asked = await ask(server, events(START, *text(0, "x"), finished("end_turn"), 0.01, end=end))
        assert asked.reply.text == "x"

    @pytest.mark.parametrize("end", ["finish", "close", "cut", "reset"])
    async def test_a_stream_that_ends_in_the_middle_is_a_drop(self, server, end):
        asked = await ask(server, events(START, *text(0, "x"), *call(1, "a", "f", "{}"), 0.01, end=end))
        assert asked.error.kind is UNAVAILABLE
        assert asked.shown == [("text", "x")]

    @pytest.mark.parametrize("data", [[], [PING] * 3, [b": ping\n\n"], [b"data: [DONE]\n\n"]])
    async def test_a_stream_without_an_answer_is_a_failure(self, server, data):
        assert (await ask(server, events(*data))).error.kind is UNAVAILABLE

    async def test_an_event_that_is_no_json_fails_the_attempt(self, server):
        assert (await ask(server, events(START, b"data: {oops\n\n", STOP))).error.kind is UNAVAILABLE

    async def test_a_drop_before_any_answer(self, server):
        assert (await ask(server, Answer(status=None))).error.kind is UNAVAILABLE


class TestClocks:
    async def test_silence_in_the_middle_is_a_stall(self, server):
        stream = events(START, *text(0, "x")[:-1], end="hold")
        async with asyncio.timeout(1), http_client() as http:
            asked = await ask(server, stream, clocks=Clocks(idle_seconds=0.03), http=http)
            assert asked.error.kind is UNAVAILABLE
            await server.closed_by_client.wait()

    async def test_pings_are_no_content(self, server):
        clocks = Clocks(first_content_seconds=0.05, idle_seconds=0.04)
        asked = await ask(server, events(START, *[0.012, PING] * 20, end="hold"), clocks=clocks)
        assert asked.error.kind is UNAVAILABLE

    async def test_pings_keep_an_answer_alive_that_has_begun(self, server):
        start, piece, _ = text(0, "x")
        stream = events(START, start, piece, *[0.012, PING] * 10, finished("end_turn"), STOP)
        assert (await ask(server, stream, clocks=Clocks(idle_seconds=0.04))).reply.text == "x"

    async def test_a_block_that_is_shown_to_nobody_is_content(self, server):
        """Thoughts that are not told, a search: the model is at work."""
        stream = [START, begun(0, type="redacted_thinking", data="enc"), *[0.012, PING] * 6, *text(1, "x")]
        clocks = Clocks(first_content_seconds=0.05, idle_seconds=0.04)
        assert (await ask(server, events(*stream, finished("end_turn"), STOP), clocks=clocks)).reply.text == "x"

    async def test_cancelling_closes_the_connection(self, server):
        async with asyncio.timeout(1), http_client() as http:
            task = asyncio.create_task(ask(server, events(START, end="hold"), http=http))
            await server.asked.wait()
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await server.closed_by_client.wait()
