"""Wall time as the wire shows it."""

from datetime import UTC, datetime
from time import time


def now() -> datetime:
    return datetime.now(UTC)


def rfc3339(moment: datetime) -> str:
    """UTC with milliseconds: `2026-01-31T12:00:00.000Z`."""
    utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return (
        f"{utc.year:04d}-{utc.month:02d}-{utc.day:02d}T{utc.hour:02d}:{utc.minute:02d}:{utc.second:02d}"
        f".{utc.microsecond // 1000:03d}Z"
    )


class Stamp:
    """The present time as RFC 3339, formatted anew once a millisecond: thousands of deltas a second share one text."""

    def __init__(self) -> None:
        self._millisecond = 0
        self._text = ""

    def __call__(self) -> str:
        millisecond = int(time() * 1000)
        if millisecond != self._millisecond:
            self._millisecond = millisecond
            self._text = rfc3339(datetime.fromtimestamp(millisecond / 1000, UTC))
        return self._text


stamp = Stamp()
