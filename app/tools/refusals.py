"""The text in a refusal (400, 404, 409, 422): why a call was not accepted, in the words of the application.

Read are plain text, and `error`, `message`, `detail` and `errors` of a JSON object, as the common frameworks write them:
Laravel's `{"message", "errors": {field: [..]}}`, FastAPI's list under `detail`, RFC 9457, JSON:API.
"""

import re
from http import HTTPStatus
from typing import Any

MAX_REFUSAL_CHARS = 2_000

_MARKUP = re.compile(r"<[a-zA-Z!/?]")
_CODE = re.compile(r"\w+([_.:-]\w+)+")
_PHRASES = frozenset(status.phrase.lower() for status in HTTPStatus)
_MAX_LEVELS = 6
_MAX_PARTS = 50


def refusal_text(value: Any) -> str | None:
    """The usable text in a parsed body or a plain text, at most 2,000 characters; None if there is none."""
    text = _of_object(value, 0) if isinstance(value, dict) else _text_of(value, 0)
    if not text:
        return None
    return text if len(text) <= MAX_REFUSAL_CHARS else text[: MAX_REFUSAL_CHARS - 1] + "…"


def _of_object(body: dict[str, Any], level: int) -> str | None:
    """The first of `error`, `message`, `detail` that has a text; `errors`, the list of places, is always added.

    A mere code or a status's own phrase (`Bad Request`) as the first tells little, so that the next is added too.
    """
    parts: list[str] = []
    for key in ("error", "message", "detail"):
        text = _text_of(body.get(key), level + 1)
        if text and text not in parts:
            parts.append(text)
            if not (_CODE.fullmatch(text) or text.lower() in _PHRASES):
                break
    listed = _text_of(body.get("errors"), level + 1)
    if listed and listed not in parts:
        parts.append(listed)
    title = _text_of(body.get("title"), level + 1)
    if not parts and title and title.lower() not in _PHRASES:
        parts.append(title)
    return _joined(parts)


def _joined(parts: list[str]) -> str | None:
    """`Bad Request: a is bad`, but after a whole sentence a space is enough."""
    if not parts:
        return None
    *heads, last = parts
    return "".join(f"{head} " if head.endswith((".", "!", "?", ":")) else f"{head}: " for head in heads) + last


def _text_of(value: Any, level: int) -> str | None:
    if level > _MAX_LEVELS:
        return None
    match value:
        case str():
            text = value.strip()
            return text if text and not _MARKUP.search(text) else None
        case list():
            parts = [_text_of(item, level + 1) for item in value[:_MAX_PARTS]]
            return "; ".join(part for part in parts if part) or None
        case dict():
            return _of_entry(value, level)
    return None


def _of_entry(entry: dict[str, Any], level: int) -> str | None:
    """One entry of a list of problems, or an object of fields with their problems."""
    text = _text_of(entry.get("msg"), level + 1) or _of_object(entry, level)
    if text:
        place = _place(entry)
        return f"{place}: {text}" if place else text
    fields = {field: _text_of(item, level + 1) for field, item in list(entry.items())[:_MAX_PARTS]}
    return "; ".join(f"{field}: {text}" for field, text in fields.items() if text) or None


def _place(entry: dict[str, Any]) -> str | None:
    for key in ("loc", "field", "path", "pointer", "source", "param"):
        match entry.get(key):
            case str(place) if place:
                return place[:200]
            case list(steps) if steps:
                return ".".join(str(step) for step in steps[:10])[:200]
            case {"pointer": str(place)} | {"parameter": str(place)}:
                return place[:200]
    return None
