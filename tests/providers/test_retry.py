"""Retries, failover and what the client is told of them."""

import asyncio
from typing import Any

import pytest

from app.loop.events import MessageDelta, MessageDiscarded, ReasoningDelta
from app.loop.messages import ErrorCode, FinishReason, ModelFailure, Reply, Usage
from app.loop.ports import ModelRequest
from app.providers.client import ModelSettings, ProviderError, ProviderErrorKind, Show
from app.providers.retry import Candidate, RetryingProvider, RetryPolicy

pytestmark = pytest.mark.asyncio

REQUEST = ModelRequest(3, "msg_1", ())
HELLO = Reply("Hello", usage=Usage(2, 1))


def down(retry_after: float | None = None) -> ProviderError:
    return ProviderError(ProviderErrorKind.UNAVAILABLE, "The provider is unavailable.", retry_after_seconds=retry_after)


class FakeClient:
    """Plays steps for each attempt: a text or a pair is shown, an error raised, a reply returned."""

    def __init__(self, *attempts: Any) -> None:
        self.attempts = [attempt if isinstance(attempt, list) else [attempt] for attempt in attempts]
        self.asked = 0

    async def reply(self, request: ModelRequest, settings: ModelSettings, show: Show) -> Reply:
        steps = self.attempts[min(self.asked, len(self.attempts) - 1)]
        self.asked += 1
        for step in steps:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, Reply):
                return step
            show("text", step) if isinstance(step, str) else show(*step)
        raise AssertionError("no end was played")


class Asking:
    def __init__(self, *clients: FakeClient, policy: RetryPolicy | None = None, luck: float = 1.0) -> None:
        self.events: list[Any] = []
        self.waits: list[float] = []
        self.now = 0.0
        candidates = [Candidate(f"p{n}/m", client, ModelSettings("m", {})) for n, client in enumerate(clients, 1)]
        self.provider = RetryingProvider(
            candidates, self.events.append, policy, self.sleep, lambda: luck, clock=lambda: self.now
        )

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def ask(self) -> Any:
        return await self.provider.ask(REQUEST)


class TestAReply:
    async def test_it_bears_the_full_name_of_its_model_and_its_attempts(self):
        reply = await Asking(FakeClient(down(), HELLO)).ask()
        assert (reply.text, reply.model) == ("Hello", "p1/m")
        assert [(a.model, a.attempt, a.finish_reason) for a in reply.attempts] == [
            ("p1/m", 1, None),
            ("p1/m", 2, FinishReason.STOP),
        ]
        assert reply.attempts[0].error == "The provider is unavailable."
        assert reply.attempts[1].usage == Usage(2, 1)

    async def test_deltas_are_told_and_empty_ones_are_not(self):
        asking = Asking(FakeClient([("reasoning", "hm"), "", "Hel", "lo", ("reasoning", ""), HELLO]))
        await asking.ask()
        assert asking.events == [
            ReasoningDelta(3, "hm"),
            MessageDelta(3, "msg_1", "Hel"),
            MessageDelta(3, "msg_1", "lo"),
        ]

    async def test_times_are_measured(self):
        asking = Asking(FakeClient(HELLO))

        class Slow:
            async def reply(self, request: ModelRequest, settings: ModelSettings, show: Show) -> Reply:
                asking.now += 2
                show("text", "x")
                asking.now += 3
                show("text", "y")
                return HELLO

        slow = RetryingProvider([Candidate("p/m", Slow(), ModelSettings("m", {}))], print, clock=lambda: asking.now)
        slow._emit = asking.events.append
        (attempt,) = (await slow.ask(REQUEST)).attempts
        assert (attempt.seconds, attempt.first_token_seconds) == (5.0, 2.0)


class TestBackoff:
    async def test_waits_grow_up_to_a_ceiling_and_are_random_below_it(self):
        policy = RetryPolicy(attempts=6, base_seconds=1.0, cap_seconds=4.0)
        full, half = (Asking(FakeClient(down()), policy=policy, luck=luck) for luck in (1.0, 0.5))
        await full.ask()
        await half.ask()
        assert full.waits == [1.0, 2.0, 4.0, 4.0, 4.0]
        assert half.waits == [0.5, 1.0, 2.0, 2.0, 2.0]

    async def test_four_attempts_are_made(self):
        client = FakeClient(down())
        failure = await Asking(client).ask()
        assert client.asked == 4
        assert isinstance(failure, ModelFailure)
        assert failure.code is ErrorCode.PROVIDER_UNAVAILABLE
        assert [attempt.attempt for attempt in failure.attempts] == [1, 2, 3, 4]

    async def test_retry_after_is_waited_for(self):
        asking = Asking(FakeClient(down(30.0), HELLO), luck=0.0)
        assert isinstance(await asking.ask(), Reply)
        assert asking.waits == [30.0]

    async def test_beyond_thirty_seconds_the_next_step_is_taken_at_once(self):
        first, second = FakeClient(down(31.0)), FakeClient(HELLO)
        asking = Asking(first, second)
        assert (await asking.ask()).model == "p2/m"
        assert (first.asked, asking.waits) == (1, [])
        alone = Asking(FakeClient(down(31.0)))
        assert (await alone.ask()).code is ErrorCode.PROVIDER_UNAVAILABLE
        assert alone.waits == []


class TestWhatIsFinal:
    @pytest.mark.parametrize(
        ("kind", "code"),
        [
            (ProviderErrorKind.REJECTED, ErrorCode.PROVIDER_REJECTED),
            (ProviderErrorKind.AUTH, ErrorCode.PROVIDER_AUTH),
            (ProviderErrorKind.OVERFLOW, ErrorCode.CONTEXT_OVERFLOW),
            (ProviderErrorKind.SCRIPT_EXHAUSTED, ErrorCode.SCRIPT_EXHAUSTED),
        ],
    )
    async def test_it_is_asked_once_and_no_other_model_is(self, kind, code):
        """J04."""
        client, other = FakeClient(ProviderError(kind, "why")), FakeClient(HELLO)
        failure = await Asking(client, other).ask()
        assert (failure.code, failure.message) == (code, "why")
        assert (client.asked, other.asked, len(failure.attempts)) == (1, 0, 1)

    async def test_a_bug_of_a_client_comes_through(self):
        with pytest.raises(KeyError):
            await Asking(FakeClient(KeyError("x"))).ask()

    async def test_cancelling_comes_through(self):
        asking = Asking(FakeClient(down()))
        asking.provider._sleep = lambda seconds: asyncio.sleep(60)
        task = asyncio.create_task(asking.ask())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


class TestFailover:
    async def test_the_next_model_is_asked_after_all_attempts(self):
        first, second = FakeClient(down()), FakeClient(down(), HELLO)
        reply = await Asking(first, second).ask()
        assert (first.asked, second.asked, reply.model) == (4, 2, "p2/m")
        assert [attempt.attempt for attempt in reply.attempts] == [1, 2, 3, 4, 5, 6]

    async def test_when_all_are_down_the_failure_tells_every_attempt(self):
        failure = await Asking(FakeClient(down()), FakeClient(down())).ask()
        assert [attempt.model for attempt in failure.attempts] == ["p1/m"] * 4 + ["p2/m"] * 4


class TestAfterTheFirstDelta:
    @pytest.mark.parametrize("first", ["Hel", ("reasoning", "hm")])
    async def test_the_message_is_discarded_and_written_anew_by_the_same_model(self, first):
        other = FakeClient(HELLO)
        asking = Asking(FakeClient([first, down()], ["Hello", HELLO]), other)
        reply = await asking.ask()
        assert (reply.model, other.asked) == ("p1/m", 0)
        assert asking.events[1:] == [MessageDiscarded(3, "msg_1"), MessageDelta(3, "msg_1", "Hello")]

    async def test_nothing_shown_is_not_discarded_again(self):
        asking = Asking(FakeClient(["Hel", down()], down(), HELLO))
        await asking.ask()
        assert asking.events == [MessageDelta(3, "msg_1", "Hel"), MessageDiscarded(3, "msg_1")]

    async def test_no_other_model_takes_over_and_the_last_partial_text_stays(self):
        other = FakeClient(HELLO)
        asking = Asking(FakeClient(["a", down()]), other)
        failure = await asking.ask()
        assert failure.code is ErrorCode.PROVIDER_UNAVAILABLE
        assert other.asked == 0
        assert len([e for e in asking.events if isinstance(e, MessageDiscarded)]) == 3
        assert asking.events[-1] == MessageDelta(3, "msg_1", "a")

    async def test_a_refusal_in_the_middle_is_final(self):
        """A26."""
        error = ProviderError(ProviderErrorKind.REJECTED, "no")
        asking = Asking(FakeClient(["a", error]))
        assert (await asking.ask()).code is ErrorCode.PROVIDER_REJECTED
        assert asking.events == [MessageDelta(3, "msg_1", "a")]
