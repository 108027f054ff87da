"""The chat-completions client when things go wrong: errors, drops, stalls, cancellation."""

import asyncio

import pytest

from app.providers.client import ProviderErrorKind
from app.providers.transport import Clocks, http_client
from tests.providers.asking import ask
from tests.providers.model_server import DONE, Answer, ModelServer, chunk, json_answer, sse

pytestmark = pytest.mark.asyncio

UNAVAILABLE = ProviderErrorKind.UNAVAILABLE
CALL = {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}


@pytest.fixture
async def server():
    async with ModelServer() as running:
        yield running


class TestErrorsInTheStream:
    @pytest.mark.parametrize("before", [[], [chunk("a"), chunk("b"), chunk("c")]])
    async def test_an_error_object_fails_the_attempt(self, server, before):
        """A26."""
        asked = await ask(server, sse(*before, {"choices": [], "error": {"message": "quota exceeded", "code": None}}, DONE))
        assert asked.error.kind is UNAVAILABLE
        assert "quota exceeded" in asked.error.message
        assert len(asked.shown) == len(before)

    @pytest.mark.parametrize(
        ("data", "kind"),
        [
            ({"error": {"code": 400, "message": "bad"}}, ProviderErrorKind.REJECTED),
            ({"error": "broken"}, UNAVAILABLE),
            ({"object": "error", "message": "prompt is too long", "code": 400}, ProviderErrorKind.OVERFLOW),
            ({"choices": [{"error": {"code": 401}, "finish_reason": "error"}]}, ProviderErrorKind.AUTH),
            ({"choices": [{"delta": {}, "finish_reason": "error"}]}, UNAVAILABLE),
            (b'event: error\ndata: {"message": "overloaded"}\n\n', UNAVAILABLE),
        ],
    )
    async def test_every_shape_of_error_is_classified(self, server, data, kind):
        """A26."""
        assert (await ask(server, sse(data, DONE))).error.kind is kind

    async def test_an_error_as_whole_answer(self, server):
        assert (await ask(server, json_answer({"error": {"message": "m", "code": 503}}))).error.kind is UNAVAILABLE
        assert (await ask(server, json_answer({"hello": 1}))).error.kind is UNAVAILABLE


class TestHttpErrors:
    @pytest.mark.parametrize(("status", "kind"), [(400, "rejected"), (401, "auth"), (404, "rejected"), (429, "unavailable")])
    async def test_a_status_is_classified_and_asked_once(self, server, status, kind):
        """J04."""
        asked = await ask(server, json_answer({"error": {"message": "why s3cret"}}, status, Retry_After="7"))
        assert (asked.error.kind, asked.error.status, asked.error.retry_after_seconds) == (kind, status, 7.0)
        assert "s3cret" not in asked.error.message
        assert len(server.requests) == 1

    async def test_a_long_error_is_read_in_part(self, server):
        answer = Answer([b"x" * 60_000] * 5, 500, {"Content-Type": "text/plain"}, end="hold")
        asked = await ask(server, answer)
        assert asked.error.kind is UNAVAILABLE
        assert len(asked.error.message) < 600

    async def test_a_redirect_is_not_followed(self, server):
        asked = await ask(server, Answer([], 302, {"Location": server.base_url}))
        assert asked.error.kind is ProviderErrorKind.REJECTED
        assert len(server.requests) == 1

    async def test_a_key_that_no_header_can_hold_is_never_told(self, server):
        asked = await ask(server, api_key="sé\ncret")
        assert asked.error.kind is ProviderErrorKind.AUTH
        assert "cret" not in asked.error.message


class TestTheEnd:
    async def test_done_ends_it_although_the_socket_stays_open(self, server):
        """A28."""
        async with asyncio.timeout(1), http_client() as http:
            asked = await ask(server, sse(chunk("x", "stop"), DONE, end="hold"), http=http)
            assert asked.reply.text == "x"
            await server.closed_by_client.wait()

    @pytest.mark.parametrize("frames", [[chunk("x", "stop")], [chunk("x"), DONE], [chunk("x", "stop"), b"data: [DONE]"]])
    async def test_a_finish_reason_or_done_is_enough(self, server, frames):
        assert (await ask(server, sse(*frames))).reply.text == "x"

    @pytest.mark.parametrize("end", ["cut", "reset"])
    async def test_a_connection_that_breaks_after_the_finish_reason_takes_nothing_away(self, server, end):
        assert (await ask(server, sse(chunk("x", "stop"), 0.01, end=end))).reply.text == "x"

    @pytest.mark.parametrize("end", ["finish", "close", "cut", "reset"])
    async def test_a_stream_that_ends_in_the_middle_is_a_drop(self, server, end):
        asked = await ask(server, sse(chunk("x"), chunk(tool_calls=[CALL]), 0.01, end=end))
        assert asked.error.kind is UNAVAILABLE
        assert asked.shown == [("text", "x")]

    @pytest.mark.parametrize("frames", [[], [b": OPENROUTER PROCESSING\n\n"] * 3, [DONE], [b": x\n\n", DONE]])
    async def test_a_stream_without_an_answer_is_a_failure(self, server, frames):
        """A31."""
        assert (await ask(server, sse(*frames))).error.kind is UNAVAILABLE

    async def test_comments_between_chunks_are_ignored(self, server):
        """A31."""
        asked = await ask(server, sse(b": ping\n\n", chunk("a"), b": ping\n", chunk("b", "stop"), b":\n\n", DONE))
        assert asked.reply.text == "ab"

    async def test_a_drop_before_any_answer(self, server):
        assert (await ask(server, Answer(status=None))).error.kind is UNAVAILABLE

    async def test_nobody_listens(self):
        async with ModelServer() as gone:
            pass
        asked = await ask(gone)
        assert asked.error.kind is UNAVAILABLE
        assert "127.0.0.1" not in asked.error.message


class TestClocks:
    async def test_silence_in_the_middle_is_a_stall(self, server):
        """A47."""
        clocks = Clocks(idle_seconds=0.03)
        async with asyncio.timeout(1), http_client() as http:
            asked = await ask(server, sse(*[chunk("x")] * 19, end="hold"), clocks=clocks, http=http)
            assert asked.error.kind is UNAVAILABLE
            assert len(asked.shown) == 19
            await server.closed_by_client.wait()

    async def test_any_byte_keeps_a_stream_alive(self, server):
        """A47, A31: comments for three times the limit, then the answer."""
        clocks = Clocks(idle_seconds=0.04)
        asked = await ask(server, sse(chunk("x"), *[0.012, b": ping\n\n"] * 10, chunk("y", "stop"), DONE), clocks=clocks)
        assert asked.reply.text == "xy"

    async def test_comments_and_empty_chunks_are_no_content(self, server):
        """A31: they do not hold off the clock of the first content."""
        clocks = Clocks(first_content_seconds=0.05, idle_seconds=0.04)
        pings = [0.012, b": ping\n\n", chunk("", role="assistant")] * 20
        asked = await ask(server, sse(*pings, end="hold"), clocks=clocks)
        assert asked.error.kind is UNAVAILABLE

    async def test_a_server_that_never_answers_is_a_stall(self, server):
        clocks = Clocks(first_content_seconds=0.03)
        assert (await ask(server, Answer([0.5]), clocks=clocks)).error.kind is UNAVAILABLE

    async def test_after_the_finish_reason_only_a_little_is_waited(self, server):
        clocks = Clocks(after_finish_seconds=0.03)
        asked = await ask(server, sse(chunk("x", "stop"), end="hold"), clocks=clocks)
        assert asked.reply.text == "x"

    @pytest.mark.parametrize("content", [[], [chunk("x")], [chunk("x", "stop")]])
    async def test_cancelling_closes_the_connection(self, server, content):
        async with asyncio.timeout(1), http_client() as http:
            task = asyncio.create_task(ask(server, sse(*content, end="hold"), http=http))
            await server.asked.wait()
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await server.closed_by_client.wait()
