"""What is wrong with arguments, in words that a model can act on: one line a place, few and short."""

import json
import re
from collections.abc import Iterable
from itertools import islice
from typing import Any

import jsonschema_rs

MAX_PROBLEMS = 10
MAX_PROBLEM_CHARS = 300
_MAX_SHOWN = 60
_MAX_OPTIONS = 20
_PLAIN_KEY = re.compile(r"[A-Za-z_$][\w$-]*", re.ASCII)

_K = jsonschema_rs.ValidationErrorKind


def problems_of(errors: Iterable[jsonschema_rs.ValidationError]) -> tuple[str, ...]:
    """At most ten lines of at most 300 characters; one more says that there are others."""
    lines: dict[str, None] = {}
    found = list(islice(errors, 200))
    for error in found:
        lines[_line(error)] = None
    if len(lines) > MAX_PROBLEMS:
        return (*list(lines)[: MAX_PROBLEMS - 1], f"and {len(lines) - MAX_PROBLEMS + 1} more problems")
    return tuple(lines)


def _line(error: jsonschema_rs.ValidationError) -> str:
    place = place_of(error.instance_path)
    text = _words(error)
    line = f"{place}: {text}" if place else text
    return line if len(line) <= MAX_PROBLEM_CHARS else line[: MAX_PROBLEM_CHARS - 1] + "…"


def place_of(path: Iterable[str | int]) -> str:
    """`filters.price[0].max`; a key that is no plain word is quoted."""
    place = ""
    for step in path:
        if isinstance(step, int):
            place += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step):
            place += f".{step}" if place else step
        else:
            place += f"[{_shown(step)}]"
    return place


def _words(error: jsonschema_rs.ValidationError) -> str:
    value = error.instance
    match error.kind:
        case _K.Required(name):
            return f"the field {_shown(name)} is required"
        case _K.AdditionalProperties(names) | _K.UnevaluatedProperties(names):
            fields = ", ".join(_shown(name) for name in sorted(names)[:_MAX_OPTIONS])
            return f"unknown field{'s' if len(names) > 1 else ''} {fields}"
        case _K.Type(types):
            return f"{_shown(value)} is not {_a_kind(types)}"
        case _K.Enum(options):
            return f"{_shown(value)} is not one of {_listed(options)}"
        case _K.Constant(expected):
            return f"{_shown(value)} is not {_shown(expected)}"
        case _K.AnyOf(branches) | _K.OneOfNotValid(branches):
            return f"{_shown(value)} fits none of the allowed forms: {_alternatives(branches, error.instance_path)}"
        case _K.OneOfMultipleValid():
            return f"{_shown(value)} fits more than one of the forms of which exactly one is allowed"
        case _K.FalseSchema():
            return "is not allowed"
        case _K.PropertyNames(inner):
            return f"a field's name is not allowed: {_words(inner)}"
    return _words_of_limit(error.kind, value)


def _words_of_limit(kind: jsonschema_rs.ValidationErrorKind, value: Any) -> str:
    shown = _shown(value)
    match kind:
        case _K.Minimum(limit):
            return f"{shown} is less than {_shown(limit)}"
        case _K.Maximum(limit):
            return f"{shown} is greater than {_shown(limit)}"
        case _K.ExclusiveMinimum(limit):
            return f"{shown} is not greater than {_shown(limit)}"
        case _K.ExclusiveMaximum(limit):
            return f"{shown} is not less than {_shown(limit)}"
        case _K.MultipleOf(step):
            return f"{shown} is not a multiple of {step}"
        case _K.MinLength(limit):
            return f"{shown} is shorter than {limit} characters"
        case _K.MaxLength(limit):
            return f"{shown} is longer than {limit} characters"
        case _K.Pattern(pattern):
            return f"{shown} does not match the pattern {pattern[:100]}"
        case _K.Format(name):
            return f"{shown} is not a valid {name}"
        case _K.MinItems(limit):
            return f"has {len(value)} items, at least {limit} are needed"
        case _K.MaxItems(limit) | _K.AdditionalItems(limit):
            return f"has {len(value)} items, at most {limit} are allowed"
        case _K.MinProperties(limit):
            return f"has {len(value)} fields, at least {limit} are needed"
        case _K.MaxProperties(limit):
            return f"has {len(value)} fields, at most {limit} are allowed"
    return f"{shown} is not allowed here (rule: {kind.name})"


def _alternatives(branches: list[list[jsonschema_rs.ValidationError]], base: list[str | int]) -> str:
    """What each form would have wanted, in short, told from the place `base`."""
    told = dict.fromkeys(_told(branch[0], len(base)) for branch in branches[:_MAX_OPTIONS] if branch)
    return "; or ".join(told)


def _told(error: jsonschema_rs.ValidationError, base_length: int) -> str:
    place = place_of(error.instance_path[base_length:])
    match error.kind:
        case _K.Type(types):
            text = _a_kind(types)
        case _:
            text = _words(error)[:100]
    return f"{place}: {text}" if place else text


def _a_kind(types: list[str]) -> str:
    names = [name if name == "null" else f"{'an' if name[0] in 'aio' else 'a'} {name}" for name in sorted(types)]
    return " or ".join(sorted(names, key=lambda name: name == "null"))


def _listed(options: list[Any]) -> str:
    shown = ", ".join(_shown(option) for option in options[:_MAX_OPTIONS])
    return f"{shown}, …" if len(options) > _MAX_OPTIONS else shown


def _shown(value: Any) -> str:
    """A value as JSON, shortened."""
    if isinstance(value, dict | list) and len(value) > _MAX_SHOWN:
        return f"a list of {len(value)} items" if isinstance(value, list) else f"an object of {len(value)} fields"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
