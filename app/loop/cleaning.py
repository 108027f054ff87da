"""What a model or a tool wrote, made fit to be stored and sent on.

PostgreSQL takes no NUL, and no encoder takes half a surrogate pair; NaN and the infinities are no JSON.
"""

import math
import re
from typing import Any

MAX_DEPTH = 64
_UNFIT = re.compile("[\x00\ud800-\udfff]")


class TooDeep(ValueError):
    """A value nests deeper than `MAX_DEPTH`."""


def clean_text(text: str) -> str:
    """Without NULs; a surrogate pair that came in two halves is joined, a lone half becomes U+FFFD."""
    if _UNFIT.search(text) is None:
        return text
    return text.replace("\x00", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def clean_json(value: Any, depth: int = 0) -> Any:
    """The same value with every text cleaned, keys too, NaN and the infinities as null; raises `TooDeep`.

    A whole number beyond 64 bits becomes a float, as other JSON readers have it.
    """
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and abs(value) >= 2**63:
        return clean_json(float(value)) if value.bit_length() < 1024 else None
    if not isinstance(value, dict | list):
        return value
    if depth >= MAX_DEPTH:
        raise TooDeep(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, dict):
        return {clean_text(str(key)): clean_json(item, depth + 1) for key, item in value.items()}
    return [clean_json(item, depth + 1) for item in value]
