"""The guards of the loop: plain functions of what it saw.

The empty-streak guard tells a model that keeps searching in vain to stop guessing; the rest words what the model is told
at the cap, after a blank answer, and about calls that are not executed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.loop.messages import ToolOutcome, ToolResult

EMPTY_STREAK_HINT = (
    "[The last :count results in a row found nothing. Do not repeat the same search: change the approach once, or tell "
    "the user plainly what was not found.]"
)
CAP_NOTE = (
    "[No further tool calls are possible in this run. Answer now with what the results above really say. State plainly "
    "what could not be looked up or done; do not claim otherwise.]"
)
MISFIT = "[Your reply must be JSON of the wanted shape, and nothing else. What is wrong: :problem. Send it again.]"
EMPTY_NUDGE = "[Your last reply was blank. Answer the user now, in words.]"

_NOT_JUDGED = frozenset({ToolOutcome.NEUTRAL, ToolOutcome.SKIPPED, ToolOutcome.DENIED, ToolOutcome.CANCELLED})


def judge(result: Any, keys: Sequence[str]) -> ToolOutcome:
    """`empty`, `ok` (it found something), `error` (it says so, and found nothing), or `neutral` (it cannot be judged).

    Judged are a list, and an object that carries one of `keys`; an object under such a key that itself carries one is
    judged by that.
    """
    found = _found(result, keys)
    if isinstance(result, dict) and result.get("error") is not None and not found:
        return ToolOutcome.ERROR
    if found is None:
        return ToolOutcome.NEUTRAL
    return ToolOutcome.OK if found else ToolOutcome.EMPTY


def _found(value: Any, keys: Sequence[str]) -> bool | None:
    if isinstance(value, list):
        return bool(value)
    if not isinstance(value, dict):
        return None
    carried = [value[key] for key in keys if key in value]
    if not carried:
        return None
    return any(_holds_something(item, keys) for item in carried)


def _holds_something(item: Any, keys: Sequence[str]) -> bool:
    if isinstance(item, dict) and (inner := _found(item, keys)) is not None:
        return inner
    return item not in (None, [], {}, "")


@dataclass(slots=True)
class EmptyStreak:
    """Counts empty results in a row, over all tools of a run."""

    after: int
    hint: str
    streak: int = 0

    def judge(self, result: ToolResult) -> int | None:
        """Take one result into account. Returns the streak when the hint is due on this result, else None."""
        if result.outcome in _NOT_JUDGED:
            return None
        if result.outcome is ToolOutcome.OK:
            self.streak = 0
            return None
        self.streak += 1
        return self.streak if self.after and self.streak >= self.after else None

    def text(self, streak: int) -> str:
        return self.hint.replace(":count", str(streak))
