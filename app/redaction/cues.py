"""Words near a number that say what it is, looked for without case and marks."""

import re

from app.redaction.labels import fold

LEAF = "\ufdd0"
"""Stands between texts that are read in one go; nothing matches or looks across it."""

HIDDEN = "\ufdd1"
"""Stands where a value or token was; nothing matches across it."""

_BEFORE, _AFTER = 40, 24


def before(text: str, start: int, chars: int = _BEFORE) -> str:
    """The folded words in front of `start`, within one text."""
    return fold(text[max(0, start - chars) : start].rpartition(LEAF)[2])


def after(text: str, end: int, chars: int = _AFTER) -> str:
    """The folded words behind `end`, within one text."""
    return fold(text[end : end + chars].partition(LEAF)[0])


def around(text: str, start: int, end: int, cue: re.Pattern[str]) -> bool:
    """Whether the cue stands near, on either side."""
    return cue.search(before(text, start)) is not None or cue.search(after(text, end)) is not None
