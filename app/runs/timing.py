"""How long the iterations of a run took, by what is stored of them, so that every owner of the run tells the same."""

from collections.abc import Iterable
from datetime import datetime


class Timing:
    """Times are those that the rows hold: what its attempts and the pauses before them took, when the reply was stored, and
    each result."""

    def __init__(self) -> None:
        self._model_seconds: dict[int, float] = {}
        self._replied: dict[int, datetime] = {}
        self._answered: dict[int, datetime] = {}

    def replied(self, iteration: int, spent_seconds: Iterable[float], at: datetime) -> None:
        self._model_seconds[iteration] = sum(spent_seconds)
        self._replied[iteration] = at

    def answered(self, iteration: int, at: datetime) -> None:
        self._answered[iteration] = max(at, self._answered.get(iteration, at))

    def seconds(self, iteration: int) -> float:
        """Those of its model call, and from the reply to the last result."""
        replied = self._replied[iteration]
        tools = (self._answered.get(iteration, replied) - replied).total_seconds()
        return round(self._model_seconds[iteration] + max(0.0, tools), 6)
