"""Models write numbers and booleans as strings now and then: those that are exactly such JSON are taken as meant."""

import copy
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jsonschema_rs

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_MAX_NUMBER_CHARS = 40
_ROUNDS = 3
_MAX_BRANCHES = 200

Path = tuple[str | int, ...]


def coerced(arguments: dict[str, Any], validator: jsonschema_rs.Validator) -> dict[str, Any]:
    """A copy in which the strings that broke the schema are numbers or booleans, where that is what it wants.

    What the schema takes as it stands is not touched. A later round finds what only shows when the first is mended.
    """
    current = arguments
    for _ in range(_ROUNDS):
        changes = dict(_changes(validator.iter_errors(current)))
        if not changes:
            break
        current = copy.deepcopy(current)
        for path, value in changes.items():
            _put(current, path, value)
    return current


def _changes(errors: Iterable[jsonschema_rs.ValidationError]) -> Iterator[tuple[Path, Any]]:
    for error in _flattened(errors):
        text = error.instance
        if isinstance(text, str):
            value = _meant(text, error.kind)
            if value is not None and error.instance_path:
                yield tuple(error.instance_path), value


def _flattened(errors: Iterable[jsonschema_rs.ValidationError]) -> Iterator[jsonschema_rs.ValidationError]:
    """The errors, and those of the branches of `anyOf` and `oneOf`: "a number or null" is written so."""
    waiting = list(errors)
    for _ in range(_MAX_BRANCHES):
        if not waiting:
            return
        error = waiting.pop(0)
        yield error
        if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.AnyOf | jsonschema_rs.ValidationErrorKind.OneOfNotValid):
            waiting.extend(inner for branch in error.kind.context for inner in branch)


def _meant(text: str, kind: jsonschema_rs.ValidationErrorKind) -> int | float | bool | None:
    match kind:
        case jsonschema_rs.ValidationErrorKind.Type(types):
            return read_as(text, types)
        case jsonschema_rs.ValidationErrorKind.Enum(options):
            return _option(text, options)
        case jsonschema_rs.ValidationErrorKind.Constant(expected):
            return _option(text, [expected])
    return None


def _option(text: str, options: Sequence[Any]) -> int | float | bool | None:
    value = read_as(text, ("number", "boolean"))
    fits = any(type(option) in (int, float, bool) and _same(option, value) for option in options)
    return value if fits else None


def _same(option: Any, value: Any) -> bool:
    return isinstance(option, bool) == isinstance(value, bool) and option == value


def read_as(text: str, types: Sequence[str]) -> int | float | bool | None:
    """The value whose JSON `text` exactly is, if it is of one of these types, else None. `5.0` counts as an integer."""
    if "boolean" in types and text in ("true", "false"):
        return text == "true"
    if not ("number" in types or "integer" in types):
        return None
    if len(text) > _MAX_NUMBER_CHARS or not _NUMBER.fullmatch(text):
        return None
    value = json.loads(text)
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        if "number" not in types:
            return int(value) if value.is_integer() else None
    return value if isinstance(value, int | float) else None


def _put(root: Any, path: Path, value: Any) -> None:
    for step in path[:-1]:
        root = root[step]
    root[path[-1]] = value
