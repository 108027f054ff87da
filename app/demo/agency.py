"""An estate agency that hosts two tools: what a caller's own application looks like. It trusts nothing but the signature.

A plain server of the standard library on a free port of this machine. A real application would keep its answers by
`Idempotency-Key` in its database.
"""

import base64
import hashlib
import hmac
import json
import threading
import time
import unicodedata
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

TOLERANCE_SECONDS = 300
_MAX_BODY_BYTES = 1_000_000

Answered = tuple[int, dict[str, Any]]
"""A status and the JSON of the body."""

TOOLS: dict[str, dict[str, Any]] = {
    "list_properties": {
        "description": "Properties that are for sale in one city. An empty list: there are none.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "One city, without its region."},
                "price_max": {"type": "integer", "minimum": 1, "description": "The highest price, in euros."},
                "bedrooms": {"type": "integer", "minimum": 0, "description": "At least so many."},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    "schedule_viewing": {
        "description": "Books a viewing of one property.",
        "parameters": {
            "type": "object",
            "properties": {
                "property_id": {"type": "string", "description": "As list_properties gives it."},
                "when": {"type": "string", "description": "ISO 8601, local time, such as 2031-05-06T10:00."},
            },
            "required": ["property_id", "when"],
            "additionalProperties": False,
        },
    },
}
"""The tools as they are registered, without their addresses."""


@dataclass(frozen=True, slots=True)
class Property:
    id: str
    city: str
    district: str
    bedrooms: int
    price: int


_PROPERTIES = (
    Property("V-102", "Valencia", "Ruzafa", 2, 265_000),
    Property("V-107", "Valencia", "Benimaclet", 3, 289_000),
    Property("V-113", "Valencia", "El Carmen", 1, 198_000),
    Property("V-120", "Valencia", "Eixample", 4, 540_000),
    Property("A-031", "Alicante", "San Juan", 2, 179_000),
    Property("S-009", "Sevilla", "Triana", 3, 312_000),
)


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the agency saw of one signed call."""

    signature: str
    status: int


class Agency:
    """Serves while it is entered. `secrets` (by tool) are given to it as the tools are registered."""

    def __init__(self) -> None:
        self.secrets: dict[str, str] = {}
        self.receipts: dict[str, Receipt] = {}
        self._answers: dict[str, Answered] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="agency", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, path: str, headers: Message, body: bytes) -> Answered:
        """A call that comes again is answered as before, and nothing is done twice."""
        tool = path.removeprefix("/")
        if tool not in TOOLS:
            return 404, {"message": "There is no such tool."}
        if not is_signed(self.secrets.get(tool), headers, body):
            return 401, {"message": "The signature does not fit."}
        key = str(headers.get("idempotency-key") or headers["webhook-id"])
        with self._lock:
            if key not in self._answers:
                self._answers[key] = _carry_out(tool, json.loads(body)["data"]["arguments"])
            answered = self._answers[key]
            self.receipts[str(headers["webhook-id"])] = Receipt(str(headers["webhook-signature"]), answered[0])
        return answered


def is_signed(secret: str | None, headers: Message, body: bytes) -> bool:
    """Standard Webhooks: HMAC-SHA256 over `id.timestamp.body`; one of the space-separated signatures must fit."""
    message_id, timestamp = str(headers.get("webhook-id", "")), str(headers.get("webhook-timestamp", ""))
    if secret is None or not message_id or not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 15):
        return False
    # An old request that somebody recorded is as good as a forged one.
    if abs(time.time() - int(timestamp)) > TOLERANCE_SECONDS:
        return False
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.digest(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256)
    expected = b"v1," + base64.b64encode(digest)
    given = str(headers.get("webhook-signature", "")).encode("utf-8", "replace").split(b" ")
    return any(hmac.compare_digest(expected, one) for one in given)


def _carry_out(tool: str, arguments: dict[str, Any]) -> Answered:
    """200 with what was found or done, or 422 with sentences that a model can act on."""
    try:
        return list_properties(**arguments) if tool == "list_properties" else schedule_viewing(**arguments)
    except TypeError:
        # The schema keeps such calls away; whoever calls without Rondo in between may still make them.
        return _refusal("The arguments do not fit.", {"arguments": f"see the parameters of {tool}"})


def list_properties(city: str, price_max: int | None = None, bedrooms: int = 0) -> Answered:
    found = [
        asdict(one)
        for one in _PROPERTIES
        if _plain(one.city) == _plain(city) and one.bedrooms >= bedrooms and (price_max is None or one.price <= price_max)
    ]
    return 200, {"items": found}


def schedule_viewing(property_id: str, when: str) -> Answered:
    errors = {}
    if all(one.id != property_id for one in _PROPERTIES):
        errors["property_id"] = f"there is no property '{property_id}'; list_properties gives the ids"
    now = datetime.now(UTC).astimezone()
    try:
        moment = datetime.fromisoformat(when).astimezone()
    except (ValueError, OverflowError):
        errors["when"] = f"'{when}' is no time such as 2031-05-06T10:00"
    else:
        if moment < now:
            errors["when"] = f"{when} is in the past; it is {now:%Y-%m-%dT%H:%M} now"
    if errors:
        return _refusal("The viewing was not booked.", errors)
    return 200, {"viewing": {"property_id": property_id, "when": f"{moment:%Y-%m-%dT%H:%M}", "status": "booked"}}


def _refusal(message: str, errors: dict[str, str]) -> Answered:
    return 422, {"message": message, "errors": {field: [text] for field, text in errors.items()}}


def _plain(city: str) -> str:
    """Without accents and case: people write València too."""
    letters = unicodedata.normalize("NFKD", city.strip().casefold())
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def _handler(agency: Agency) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 30

        def do_POST(self) -> None:
            length = self.headers.get("content-length", "")
            if not (length.isascii() and length.isdigit() and int(length) <= _MAX_BODY_BYTES):
                return self._send(413, {"message": "A body of at most 1 MB, and its length, are expected."})
            return self._send(*agency.answer(self.path, self.headers, self.rfile.read(int(length))))

        def _send(self, status: int, value: dict[str, Any]) -> None:
            body = json.dumps(value, ensure_ascii=False).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the demo shows what was called."""

    return Handler
