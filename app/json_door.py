"""The door for JSON: what is no JSON, or is JSON that nobody could keep or send on, is refused here."""

import json
import math
from typing import Any

import orjson

from app.infra.errors import BadRequest, Invalid

MAX_DEPTH = 64


def read_json(raw: bytes) -> Any:
    """Parse a body. No JSON: 400. NUL, NaN, infinities, lone surrogates, deeper than 64: 422."""
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise _why(raw) from None
    _check(value, 0)
    return value


def _check(value: Any, depth: int) -> None:
    if isinstance(value, str):
        if "\x00" in value:
            raise Invalid("A text holds the character NUL.")
    elif isinstance(value, dict):
        _check_depth(depth)
        for key, item in value.items():
            _check(key, depth + 1)
            _check(item, depth + 1)
    elif isinstance(value, list):
        _check_depth(depth)
        for item in value:
            _check(item, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise Invalid("A number is not finite.")


def _check_depth(depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise Invalid(f"The body is nested deeper than {MAX_DEPTH}.")


def _why(raw: bytes) -> Exception:
    """Python's own parser takes what is nearly JSON: what it reads was refused for a stated reason (422), not as 400."""
    try:
        json.loads(raw.decode("utf-8", "surrogatepass"))
    except RecursionError:
        return Invalid(f"The body is nested deeper than {MAX_DEPTH}.")
    except ValueError:
        return BadRequest("The body is not JSON.", code="invalid_json")
    return Invalid("The body holds NaN, an infinite number or half a surrogate pair.")
