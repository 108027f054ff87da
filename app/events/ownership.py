"""What the writer of a run's events is given with the run: who holds it, and how one begins who carries it on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.events.frames import KeptEvent
from app.loop.events import Event


class Holder(Protocol):
    """Who writes: the owner of the run, as far as it knows."""

    async def confirm(self) -> None:
        """Make sure that the run is still its own. Raises LeaseLost."""
        ...

    async def reserve(self, seq: int) -> None:
        """Store that events up to this seq may be shown. Raises LeaseLost."""
        ...

    async def keep(self, take: Callable[[], list[KeptEvent]], reserved: int) -> None:
        """Store the events that `take` gives when it is their turn, and reserve seqs. Raises LeaseLost."""
        ...


@dataclass(frozen=True, slots=True)
class Resumption:
    """How a new owner begins. `preamble` is shown first; `above`: the log was lost, and nothing beyond this seq was shown.

    Nothing goes out before the preamble is stored. With `above`, events that were shown before take the seqs after the
    last known one, until the first of another kind comes, or `until`, the first seq that is known again: the preamble then
    stands above.
    """

    preamble: Sequence[Event] = ()
    above: int | None = None
    until: int | None = None
