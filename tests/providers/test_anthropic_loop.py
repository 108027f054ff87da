"""The loop over the Messages API client: pauses, ids that are given again, replies that are empty."""

import pytest

from app.loop.loop import Task, run_loop
from app.loop.messages import Message, RunFinish
from app.loop.turn import Limits
from app.providers.anthropic import AnthropicClient
from app.providers.client import ModelSettings
from app.providers.retry import Candidate, RetryingProvider
from app.providers.transport import http_client
from tests.fakes import FakeJournal, FakeTools, offered
from tests.providers.messages_api import (
    START,
    STOP,
    begun,
    call,
    ended,
    events,
    finished,
    text,
)
from tests.providers.model_server import Answer, ModelServer

pytestmark = pytest.mark.asyncio

FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [{"type": "web_search_result", "url": "https://h/", "encrypted_content": "enc=="}],
}


@pytest.fixture
async def server():
    async with ModelServer() as running:
        yield running


async def run(server: ModelServer, *answers: Answer, max_iterations: int = 7):
    """The whole loop over this client, with one tool `f`; gives its outcome and the messages of each request."""
    server.play(*answers)
    async with http_client() as http:
        client = AnthropicClient(http, provider="anthropic", base_url=server.address, api_key="k")
        candidate = Candidate("anthropic/claude-opus-4-5", client, ModelSettings("claude-opus-4-5", {}, ("web_search",)))
        provider = RetryingProvider([candidate], lambda _: None)
        task = Task(
            "anthropic/claude-opus-4-5",
            (Message("user", "hi"),),
            message_id=lambda iteration: f"msg_{iteration}",
            call_id=lambda iteration, index: f"call_{iteration}_{index}",
            tools=(offered("f"),),
            limits=Limits(max_iterations=max_iterations),
        )
        outcome = await run_loop(task, provider, FakeTools({"f": {"ok": True}}), FakeJournal(), lambda _: None)
    return outcome, [request.json["messages"] for request in server.requests]


class TestInTheLoop:
    def paused(self, n: int) -> Answer:
        searching = call(1, f"srvtoolu_{n}", "web_search", '{"query":"x"}', kind="server_tool_use")
        before = [begun(0, **{**FOUND, "tool_use_id": f"srvtoolu_{n - 1}"}), ended(0)] if n > 1 else []
        return events(START, *before, *searching, finished("pause_turn"), STOP)

    async def test_pauses_are_gone_on_with_until_there_is_one_answer(self, server):
        """B14."""
        found = [begun(0, **{**FOUND, "tool_use_id": "srvtoolu_2"}), ended(0)]
        last = events(START, *found, *text(1, "Found."), finished("end_turn"), STOP)
        outcome, asked = await run(server, self.paused(1), self.paused(2), last)
        assert (outcome.finish_reason, outcome.output, outcome.iterations) == (RunFinish.STOP, "Found.", 3)
        assert [[message["role"] for message in messages] for messages in asked] == [
            ["user"],
            ["user", "assistant"],
            ["user", "assistant"],
        ]
        assert [block["type"] for block in asked[2][1]["content"]] == [
            "server_tool_use",
            "web_search_tool_result",
            "server_tool_use",
        ]

    async def test_a_pause_without_end_is_ended_by_the_cap(self, server):
        """B14."""
        outcome, asked = await run(server, *[self.paused(n) for n in range(1, 5)], max_iterations=4)
        assert (outcome.finish_reason, len(asked)) == (RunFinish.MAX_ITERATIONS, 4)

    async def test_one_id_given_in_every_round_makes_as_many_calls(self, server):
        """A43, B22."""
        rounds = [events(START, *call(0, "functions.f:0", "f", "{}"), finished("tool_use"), STOP)] * 3
        outcome, asked = await run(server, *rounds, events(START, *text(0, "done"), finished("end_turn"), STOP))
        assert (outcome.output, outcome.iterations) == ("done", 4)
        ids = [message["content"][0]["id"] for message in asked[3] if message["role"] == "assistant"]
        assert len(set(ids)) == 3
        assert ids == [message["content"][0]["tool_use_id"] for message in asked[3][1:] if message["role"] == "user"]

    async def test_an_empty_reply_is_asked_for_once_more_and_then_told_as_empty(self, server):
        """B16, B17."""
        first = events(START, *call(0, "a", "f", "{}"), finished("tool_use"), STOP)
        nothing = [events(START, finished("tool_use"), STOP), events(START, finished("end_turn"), STOP)]
        outcome, asked = await run(server, first, *nothing)
        assert (outcome.finish_reason, outcome.output) == (RunFinish.EMPTY, None)
        assert [message["role"] for message in asked[2]] == ["user", "assistant", "user"]
        assert [block["type"] for block in asked[2][2]["content"]] == ["tool_result", "text"]
