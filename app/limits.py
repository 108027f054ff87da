"""Open streams, bounded per process and per workspace. Whoever opens one takes a place first, and gives it back."""

from collections import Counter

from app.infra.errors import TooMany, Unavailable
from app.infra.telemetry import REFUSALS

_RETRY_SECONDS = 5


class StreamPlaces:
    """One per process. `most` in all, `most_of_one` for each workspace (None: as many as there are)."""

    def __init__(self, most: int, most_of_one: int | None = None) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._taken: Counter[str] = Counter()

    def take(self, workspace_id: str) -> None:
        """Raises `Unavailable` when the process is full, `TooMany` when the workspace has its share."""
        if self._taken.total() >= self._most:
            REFUSALS.labels("streams").inc()
            raise Unavailable("This process has as many streams open as it may.", retry_after_seconds=_RETRY_SECONDS)
        if self._most_of_one is not None and self._taken[workspace_id] >= self._most_of_one:
            REFUSALS.labels("workspace_streams").inc()
            raise TooMany("The workspace has as many streams open here as it may.", retry_after_seconds=_RETRY_SECONDS)
        self._taken[workspace_id] += 1

    def give_back(self, workspace_id: str) -> None:
        self._taken[workspace_id] -= 1
        if self._taken[workspace_id] <= 0:
            del self._taken[workspace_id]


class StreamPlace:
    """The place of one request: taken at most once, given back when the request has been answered."""

    def __init__(self, places: StreamPlaces, workspace_id: str) -> None:
        self._places, self._workspace_id = places, workspace_id
        self._is_taken = False

    def take(self) -> None:
        """Raises as `StreamPlaces.take` does."""
        if not self._is_taken:
            self._places.take(self._workspace_id)
            self._is_taken = True

    def give_back(self) -> None:
        if self._is_taken:
            self._places.give_back(self._workspace_id)
            self._is_taken = False
