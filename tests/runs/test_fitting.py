"""A prompt held to its model's window, on a fake of the Provider port."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from app.loop.messages import ErrorCode, Message, ModelCall, ModelFailure, Reply, Usage
from app.loop.ports import CheckedArguments, ModelRequest, OfferedTool
from app.providers.windows import Window
from app.runs.fitting import FittedProvider, Fitting, TokenFactors
from app.runs.prompt import Prompt
from app.sessions.history import History, Turn

pytestmark = pytest.mark.usefixtures("vocabulary")
MODEL = "lab/small"


def turn(number: int, words: int = 20) -> Turn:
    return Turn((Message("user", f"turn{number} " + "word " * words), Message("assistant", "Fine.")), words, number * 2)


@dataclass
class Asked:
    """The Provider port: keeps what it was sent and gives the answers in order, the last one over and over."""

    answers: Sequence[Reply | ModelFailure] = (Reply("ok", model=MODEL),)
    sent: list[list[str]] = field(default_factory=list)

    async def ask(self, request: ModelRequest) -> Reply | ModelFailure:
        self.sent.append([message.text for message in request.messages])
        return self.answers[min(len(self.sent), len(self.answers)) - 1]


@dataclass
class Stand:
    inner: Asked
    provider: FittedProvider
    prompt: Prompt
    asked_for_summary: list[bool]

    async def ask(self, *own: Message, tools: tuple[OfferedTool, ...] = ()) -> list[str]:
        await self.provider.ask(ModelRequest(1, "msg", (*self.prompt.messages, *own), tools))
        return self.inner.sent[-1]


def stand(
    window: int, turns: int = 10, inner: Asked | None = None, summarised: History | None = None,
    factors: TokenFactors | None = None,
) -> Stand:  # fmt: skip
    asked: list[bool] = []

    async def summarise() -> History | None:
        asked.append(True)
        return summarised

    prompt = Prompt(system_prompt="Be brief.", history=History(tuple(map(turn, range(turns)))), input="Now?")
    inner = inner or Asked()
    fitting = Fitting(prompt, MODEL, Window(window, 0), summarise, factors or TokenFactors())
    return Stand(inner, FittedProvider(inner, fitting), prompt, asked)


class TestWhatFits:
    async def test_it_goes_as_it_is(self) -> None:
        made = stand(100_000)
        assert await made.ask() == [message.text for message in made.prompt.messages]
        assert made.asked_for_summary == []


class TestWhatDoesNot:
    async def test_it_is_summarised_once_and_stays_so(self) -> None:
        made = stand(200, summarised=History((turn(9),), "Sum.", 2, 18))
        first = await made.ask()
        assert len(first) == 5
        assert "Sum." in first[1]
        own = (Message("assistant", "I look."), Message("tool", "{}", tool_call_id="c"))
        assert await made.ask(*own) == [*first, "I look.", "{}"]
        assert made.asked_for_summary == [True]

    async def test_else_the_oldest_turns_go_and_what_was_asked_stays(self) -> None:
        sent = await stand(200).ask()
        assert (sent[0], sent[-1]) == ("Be brief.", "Now?")
        assert [text.split()[0] for text in sent[1:-1:2]] == ["turn6", "turn7", "turn8", "turn9"]

    async def test_the_tools_take_room(self) -> None:
        tool = OfferedTool("search", "word " * 60, {}, lambda arguments: CheckedArguments(arguments))
        assert len(await stand(200).ask(tools=(tool,))) < len(await stand(200).ask())

    async def test_what_cannot_be_made_smaller_is_sent_all_the_same(self) -> None:
        assert await stand(5).ask() == ["Be brief.", "Now?"]

    async def test_the_oldest_results_are_cut_before_the_newest(self) -> None:
        own = [Message("tool", f"r{number} " + "word " * 300, tool_call_id=f"c{number}") for number in range(3)]
        sent = await stand(800, turns=0).ask(*own)
        assert ["would not fit" in text for text in sent[-3:]] == [True, False, False]


class TestTheProvidersWord:
    overflow = ModelFailure(ErrorCode.CONTEXT_OVERFLOW, "too long", (ModelCall(MODEL, 1, 0.1, error="too long"),))

    async def test_less_is_sent_once_and_both_attempts_are_kept(self) -> None:
        inner = Asked((self.overflow, Reply("ok", model=MODEL, attempts=(ModelCall(MODEL, 1, 0.1),))))
        made = stand(100_000, inner=inner)
        answer = await made.provider.ask(ModelRequest(1, "msg", made.prompt.messages))
        assert [attempt.attempt for attempt in answer.attempts] == [1, 2]
        assert 2 < len(inner.sent[1]) < len(inner.sent[0])

    async def test_nothing_is_sent_again_that_cannot_be_made_smaller(self) -> None:
        inner = Asked((self.overflow,))
        made = stand(100_000, turns=0, inner=inner)
        assert await made.provider.ask(ModelRequest(1, "msg", made.prompt.messages)) == self.overflow
        assert len(inner.sent) == 1

    async def test_what_it_reports_corrects_the_count(self) -> None:
        factors = TokenFactors()
        inner = Asked((Reply("ok", model=MODEL, usage=Usage(input_tokens=6000)),))
        made = stand(5000, turns=100, inner=inner, factors=factors)
        assert len(await made.ask()) == 202
        assert 1.2 < factors.of(MODEL) < 1.8
        inner.answers = (Reply("ok", model=MODEL),)
        without = len(await stand(5000, turns=150, inner=inner).ask())
        assert len(await stand(5000, turns=150, inner=inner, factors=factors).ask()) < 0.8 * without

    @pytest.mark.parametrize(("counted", "reported"), [(100, 200), (5000, 12), (5000, 50_000), (5000, 0)])
    def test_a_report_of_something_else_corrects_nothing(self, counted: int, reported: int) -> None:
        factors = TokenFactors()
        factors.learn(MODEL, counted, reported)
        assert factors.of(MODEL) == 1.0
