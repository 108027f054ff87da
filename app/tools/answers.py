"""What a webhook's answer means to the loop: a result, a refusal that the model can mend, or a failure that only people can.

What the model reads and what log and trace hold are two texts: a failure's status, cause and body are in `cause` alone.
"""

import codecs
import json
import re
from collections.abc import Iterable
from email.message import Message
from typing import Any

import orjson

from app.loop.cleaning import TooDeep, clean_json, clean_text
from app.loop.messages import ToolOutcome, ToolResult
from app.loop.tool_calls import unavailable
from app.outbound.sender import Answer
from app.tools.refusals import refusal_text

ACCEPTED = 202
"""A webhook that answers this gives its result later; what else it says is not read."""
MENDABLE = frozenset({400, 404, 409, 422})
MAX_EXCERPT_CHARS = 500

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"), (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"),
)  # fmt: skip
# Python counts these among the text encodings. No page is written in them, and some take very long on long texts.
_NO_CHARSETS = frozenset({"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "mbcs", "oem", "utf-7"})
_BINARY = re.compile(r"(image|audio|video|font)/|application/(octet-stream|pdf|zip|gzip)$")
_NO_JSON = object()


def result_of(tool: str, answer: Answer, hidden: Iterable[str] = ()) -> ToolResult:
    """The result of a call that was answered. `hidden`: secrets that were sent and must not come back in an error."""
    status = answer.status
    try:
        if status == ACCEPTED:
            return ToolResult(None, ToolOutcome.NEUTRAL, status=status)
        if 200 <= status < 300:
            return ToolResult(_value(answer), ToolOutcome.OK, status=status)
        if status in MENDABLE:
            text = refusal_text(_parsed_or_text(answer))
            shown = masked(text, hidden) if text else f"The tool {tool} refused the call ({status})."
            return ToolResult({"error": shown}, ToolOutcome.ERROR, status=status)
    except TooDeep as error:
        return failed(tool, f"the answer is {error}", status=status)
    excerpt = masked(" ".join(decoded(answer).split()), hidden)[:MAX_EXCERPT_CHARS]
    return failed(tool, f"answered {status}: {excerpt}" if excerpt else f"answered {status}", status=status)


def failed(tool: str, cause: str, *, status: int | None = None) -> ToolResult:
    """The result of a call that only a person can mend. The model never reads `cause`."""
    return ToolResult(unavailable(tool), ToolOutcome.FAILED, status=status, cause=cause)


def masked(text: str, hidden: Iterable[str]) -> str:
    """Without the secrets that were sent: an error page may show the whole request."""
    for secret in hidden:
        text = text.replace(secret, "********")
    return text


def _value(answer: Answer) -> Any:
    found = _parsed_or_text(answer)
    if not isinstance(found, _Text):
        return found
    if found.strip():
        return {"content": str(found)}
    return {"ok": True}


class _Text(str):
    """The text of an answer that is no JSON (a JSON string is a plain `str`)."""


def _parsed_or_text(answer: Answer) -> Any:
    """The JSON of the body, whatever its type says, else its text. Raises `TooDeep`.

    A type other than JSON is believed of a lone number, word or string: `42` sent as plain text is a text.
    """
    media_type = _content_type(answer).get_content_type()
    text = decoded(answer)
    value = _json(text)
    declared_text = "content-type" in answer.headers and "json" not in media_type
    if value is not _NO_JSON and not (declared_text and not isinstance(value, dict | list)):
        return clean_json(value)
    if _BINARY.match(media_type):
        return _Text(f"({media_type}, {len(answer.body)} bytes)")
    return _Text(clean_text(text))


def _json(text: str) -> Any:
    """Read JSON; NaN, the infinities and what is beyond all numbers are null. `_NO_JSON` if it is none."""
    try:
        return orjson.loads(text)
    except ValueError:
        pass  # Python's reader takes some things that are nearly JSON, as other applications' writers put them out
    try:
        return json.loads(text, parse_constant=lambda _: None, parse_int=_whole_number)
    except RecursionError:
        raise TooDeep("nested deeper than can be read") from None
    except ValueError:
        return _NO_JSON


def _whole_number(digits: str) -> int | float:
    return int(digits) if len(digits) < 20 else float(digits)


def decoded(answer: Answer) -> str:
    """The body as text: a byte order mark decides, then the declared charset, then UTF-8, then Windows-1252."""
    body = answer.body
    for mark, name in _BYTE_ORDER_MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace")
    charset = _content_type(answer).get_content_charset()
    if charset and _is_charset(charset):
        return body.decode(charset, "replace")
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body.decode("windows-1252", "replace")


def _content_type(answer: Answer) -> Message:
    message = Message()
    message["content-type"] = answer.headers.get("content-type", "application/json")
    return message


def _is_charset(name: str) -> bool:
    try:
        b"x".decode(name, "replace")  # what is no text encoding tells so only when it has something to decode
        return codecs.lookup(name).name.replace("_", "-") not in _NO_CHARSETS
    except (LookupError, ValueError):
        return False
