"""What the runs of a storm are asked to do, made from the seed alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

How = Literal["stream", "background", "wait"]

WORDS = ("wind", "rain", "hail", "gust", "squall", "thunder", "drizzle", "mist", "frost", "¿qué?", "déjà", "嵐", "⚡")
TOOLS: dict[str, dict[str, Any]] = {
    "search": {},
    "book": {"at_most_once": True},
    "pay": {"requires_approval": True},
    "later": {},
}
"""`later` answers 202, and its result is given afterwards."""


@dataclass(frozen=True, slots=True)
class Call:
    """`act`: what the tool does at the first delivery (`ok`, `503`, `reset`); `decision`: what becomes of an approval."""

    tool: str
    number: int
    act: str = "ok"
    delay_ms: int = 0
    decision: str = "approve"

    @property
    def arguments(self) -> dict[str, Any]:
        return {"n": self.number, "act": self.act, "delay_ms": self.delay_ms, "decision": self.decision}


@dataclass(frozen=True, slots=True)
class Turn:
    """`act`: what the model does at the first request for it (`ok`, `overloaded`, `cut` in the middle of its text)."""

    text: str
    calls: tuple[Call, ...] = ()
    act: str = "ok"


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. `key` is its Idempotency-Key, and stands in its input and metadata."""

    key: str
    turns: tuple[Turn, ...]
    model: str
    how: How
    delay_ms: int
    chunk_chars: int
    in_session: bool = True
    on_conflict: str = "reject"
    starts_after: float = 0.0
    cancelled_after: float | None = None
    interrupted: bool = False
    """A later run of its batch may cancel it."""

    @property
    def may_be_cancelled(self) -> bool:
        return self.cancelled_after is not None or self.interrupted

    def body(self) -> dict[str, Any]:
        """The request that starts it."""
        body: dict[str, Any] = {"input": f"Please do: {self.key}", "model": self.model, "metadata": {"key": self.key}}
        if self.model.startswith("scripted/"):
            body["script"] = [self._scripted(turn) for turn in self.turns]
        if self.in_session:
            body["on_conflict"] = self.on_conflict
        else:
            body["tenant"] = {"type": "organization", "id": "storm"}
        if self.how != "wait":
            body[self.how] = True
        return body

    def _scripted(self, turn: Turn) -> dict[str, Any]:
        wanted = [{"name": call.tool, "arguments": call.arguments} for call in turn.calls]
        shown: dict[str, Any] = {"text": turn.text, "delay_ms": self.delay_ms, "chunk_chars": self.chunk_chars}
        return {**shown, "tool_calls": wanted} if wanted else shown


class Planner:
    """The batches of one session, one after the other: runs that belong together, and overlap."""

    def __init__(self, seed: int, number: int) -> None:
        self._random = Random(f"{seed}/session/{number}")
        self._name = f"{seed}-{number}"
        self._count = 0

    def batches(self) -> Iterator[list[Plan]]:
        while True:
            match self._random.choices(("one", "alone", "cancel", "queue", "interrupt"), (60, 10, 12, 10, 8))[0]:
                case "one":
                    yield [self._plan()]
                case "alone":
                    yield [self._plan(in_session=False)]
                case "cancel":
                    yield [self._plan(cancelled_after=self._random.uniform(0.0, 2.0))]
                case "queue":
                    yield [self._plan(on_conflict="queue") for _ in range(self._random.randint(2, 3))]
                case _:
                    later = self._random.uniform(0.1, 1.5)
                    first = self._plan(interrupted=True, on_conflict="queue")
                    yield [first, self._plan(on_conflict="interrupt", starts_after=later)]

    def last(self) -> Plan:
        """A short run that a free session completes."""
        return Plan(f"{self._name}-last", (Turn("All is calm."),), "scripted/storm", "wait", 1, 6)

    def _plan(self, **more: Any) -> Plan:
        self._count += 1
        random = self._random
        model = random.choice(("scripted/storm", "openai/storm"))
        turns = [self._turn(model, last=False) for _ in range(random.choices((0, 1, 2, 3), (25, 40, 25, 10))[0])]
        turns.append(self._turn(model, last=True))
        how: How = random.choices(("stream", "background", "wait"), (45, 40, 15))[0]
        return Plan(
            f"{self._name}-{self._count}", tuple(turns), model, how, random.randint(10, 60), random.randint(3, 9), **more
        )  # fmt: skip

    def _turn(self, model: str, *, last: bool) -> Turn:
        text = " ".join(self._random.choices(WORDS, k=self._random.randint(4, 30)))
        act = "ok"
        if model.startswith("openai/"):
            act = self._random.choices(("ok", "overloaded", "cut"), (80, 8, 12))[0]
        return Turn(text, () if last else self._calls(), act)

    def _calls(self) -> tuple[Call, ...]:
        tools = self._random.choices(
            list(TOOLS), (60, 20, 10, 10), k=self._random.choices((1, 2, 3, 6), (50, 25, 15, 10))[0]
        )
        kept = [name for place, name in enumerate(tools) if name != "pay" or "pay" not in tools[:place]]
        return tuple(self._call(name, place) for place, name in enumerate(kept))

    def _call(self, tool: str, place: int) -> Call:
        acts = {"search": ("ok", "ok", "ok", "503", "reset"), "book": ("ok", "ok", "ok", "reset")}
        return Call(
            tool,
            self._random.randrange(1_000_000) * 10 + place,
            self._random.choice(acts.get(tool, ("ok",))),
            self._random.choice((0, 20, 100, 400, 900)),
            self._random.choice(("approve", "approve", "reject")),
        )
