"""When a cron expression is due, in a time zone, over clock changes. Pure: time comes in as a value.

An expression has five fields and is read as Debian's cron reads it. A slot is the moment at which it is due, in UTC. Where
clocks go forward, a time in the gap is due at the gap's end; where they go back, a time that comes twice is due the first
time only. Expressions for every hour (`0 * * * *`, `*/5 * * * *`, `0 */2 * * *`) follow the hours as they pass instead:
nothing is put off, and the hour that comes twice counts twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from heapq import merge
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

_LONGEST_CHANGE = timedelta(hours=3)
"""More than clocks are moved."""
_SECOND = timedelta(seconds=1)


class BadSchedule(ValueError):
    """An expression or a time zone that cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Due:
    """What is due: the latest slot, and how many before it were missed (no more than `COUNTED` are counted)."""

    slot: datetime
    missed: int


COUNTED = 1000


def zone(name: str) -> ZoneInfo:
    """Raises BadSchedule for a name that the time zone database does not know."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise BadSchedule(f"there is no time zone '{name}'") from None


class Schedule:
    """An expression in a time zone. Raises BadSchedule for one that cannot be read."""

    def __init__(self, expression: str, timezone: str) -> None:
        self._zone = zone(timezone)
        fields = expression.split()
        if len(fields) != 5:
            raise BadSchedule("a cron expression has five fields: minute, hour, day, month, weekday")
        try:
            hours = CronSim(expression, datetime(2000, 1, 1)).hours  # noqa: DTZ001
        except CronSimError as error:
            raise BadSchedule(f"'{expression}' cannot be read: {error}") from None
        self._is_hourly = fields[1].startswith("*") or len(hours) == 24
        self._expression = expression

    def next_after(self, moment: datetime) -> datetime | None:
        """The first slot after a moment; None for an expression that never comes."""
        return next(self._slots(moment), None)

    def due(self, after: datetime, now: datetime) -> Due | None:
        """The latest slot in (after, now]; None when nothing is due."""
        slot = next((slot for slot in self._slots(now, backwards=True) if slot <= now), None)
        if slot is None or slot <= after:
            return None
        missed = 0
        for earlier in self._slots(after):
            if earlier >= slot or missed == COUNTED:
                break
            missed += 1
        return Due(slot, missed)

    def _slots(self, moment: datetime, *, backwards: bool = False) -> Iterator[datetime]:
        """Slots after a moment, or backwards from about a moment on; each once, without end unless it never comes."""
        moment = moment.replace(microsecond=0)
        first = self._moments(moment, backwards, 0)
        slots = merge(first, self._moments(moment, backwards, 1), reverse=backwards) if self._is_hourly else first
        last: datetime | None = None
        for slot in slots:
            if slot != last and (backwards or slot > moment):
                last = slot
                yield slot

    def _moments(self, moment: datetime, backwards: bool, fold: int) -> Iterator[datetime]:
        """The times on the wall from about a moment on, as moments; of a time that comes twice, that of the fold."""
        margin = self._margin(moment)
        local = moment.astimezone(self._zone).replace(tzinfo=None)
        start = local + margin + _SECOND if backwards else local - margin
        for wall in CronSim(self._expression, start, reverse=backwards):
            found = wall.replace(tzinfo=self._zone, fold=fold).astimezone(UTC)
            if found.astimezone(self._zone).replace(tzinfo=None) == wall:
                yield found
            elif not self._is_hourly:
                yield self._end_of_gap(wall)

    def _margin(self, moment: datetime) -> timedelta:
        """How far the wall may be off near a moment."""
        before, after = (
            (moment + far).astimezone(self._zone).utcoffset() or timedelta() for far in (-_LONGEST_CHANGE, _LONGEST_CHANGE)
        )
        return abs(after - before)

    def _end_of_gap(self, wall: datetime) -> datetime:
        """The moment at which the clocks go forward over a time on the wall."""
        # PEP 495: in a gap, fold 1 takes the offset after the change, which gives a moment before it
        low, high = (wall.replace(tzinfo=self._zone, fold=fold).astimezone(UTC) for fold in (1, 0))
        old = low.astimezone(self._zone).utcoffset()
        while high - low > _SECOND:
            middle = (low + (high - low) / 2).replace(microsecond=0)
            if middle.astimezone(self._zone).utcoffset() == old:
                low = middle
            else:
                high = middle
        return high


def read_schedule(expression: str, timezone: str, now: datetime) -> Schedule:
    """A schedule that is due some day. Raises BadSchedule, also for an expression that never comes."""
    schedule = Schedule(expression, timezone)
    if schedule.next_after(now) is None:
        raise BadSchedule(f"'{expression}' never comes")
    return schedule
