"""Ids: a prefix and a UUIDv7 (RFC 9562) as 32 lower-case hex digits.

The ids of a run's messages and calls are derived from the run's id and their place in it, so that a process that carries
a run on after a crash gives the same call the same id, and with it the same Idempotency-Key.
"""

import hashlib
import math
import os
import re
import time
from datetime import datetime

SESSION, RUN, MESSAGE, CALL, MEMORY, RULE, AGENT, KEY, SUBSCRIPTION, WORKSPACE = (
    "ses_", "run_", "msg_", "call_", "mem_", "rule_", "agt_", "key_", "sub_", "wsp_",
)  # fmt: skip

_last = 0
_SHAPE = re.compile(r"[a-z]{3,4}_[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}")


def new(prefix: str) -> str:
    """A fresh id; of two made by one process, the later one is the greater."""
    global _last
    _last = max(time.time_ns() * 4096 // 1_000_000, _last + 1)
    milliseconds, fraction = divmod(_last, 4096)
    return prefix + _uuid7(milliseconds, fraction.to_bytes(2, "big") + os.urandom(8))


def first_at(prefix: str, moment: datetime) -> str:
    """Less than every id that was made at a moment or later, and greater than those made before it."""
    milliseconds = min(max(0, math.ceil(moment.timestamp() * 1000)), 2**48 - 1)
    return f"{prefix}{milliseconds:012x}"


def derived(prefix: str, origin: str, *place: int | str) -> str:
    """The id of what stands at `place` of `origin` (an id): always the same, with the origin's time in front."""
    text = "/".join((prefix, origin, *map(str, place)))
    milliseconds = int(origin.rpartition("_")[2][:12], 16)
    return prefix + _uuid7(milliseconds, hashlib.sha256(text.encode()).digest()[:10])


def is_id(text: str, prefix: str) -> bool:
    return text.startswith(prefix) and _SHAPE.fullmatch(text) is not None


def _uuid7(milliseconds: int, tail: bytes) -> str:
    """RFC 9562: 48 bits of time, version, 12 bits (two bytes of `tail`), variant, 62 bits (the other eight)."""
    high = (milliseconds & (2**48 - 1)) << 16 | 0x7000 | int.from_bytes(tail[:2], "big") & 0xFFF
    low = 0x2 << 62 | int.from_bytes(tail[2:], "big") & (2**62 - 1)
    return f"{high:016x}{low:016x}"
