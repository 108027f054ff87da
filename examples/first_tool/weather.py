"""A first tool: an HTTP server of the standard library that answers Rondo's signed calls. Needs Python and nothing else.

RONDO_TOOL_SECRET=whsec_… python weather.py      listens on http://127.0.0.1:9000/weather
"""

import base64
import hashlib
import hmac
import json
import os
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = base64.b64decode(os.environ["RONDO_TOOL_SECRET"].removeprefix("whsec_"))
TOLERANCE_SECONDS = 300
KNOWN = {"vigo": {"sky": "rain", "celsius": 14}, "sevilla": {"sky": "clear", "celsius": 31}}
answered: dict[str, tuple[int, dict]] = {}
"""Answers by Idempotency-Key: a call that comes twice is carried out once. A real application keeps this in its database."""


def is_signed(headers, body: bytes) -> bool:
    """Standard Webhooks: HMAC-SHA256 over `id.timestamp.body`, one of the space-separated signatures must fit."""
    message_id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not timestamp.isdigit() or abs(time.time() - int(timestamp)) > TOLERANCE_SECONDS:
        return False
    digest = hmac.new(SECRET, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256).digest()
    expected = b"v1," + base64.b64encode(digest)
    given = headers.get("webhook-signature", "").encode()
    return any(hmac.compare_digest(expected, one) for one in given.split(b" "))


def weather(city: str) -> tuple[int, dict]:
    """200 with what was found, or 422 with a sentence that the model can act on."""
    found = KNOWN.get(city.strip().lower())
    if found is None:
        return 422, {"message": f"No station in '{city}'. Known are: {', '.join(sorted(KNOWN))}."}
    return 200, {"city": city, **found}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if not is_signed(self.headers, body):
            return self.answer(401, {"message": "not signed"})
        call = json.loads(body)["data"]
        key = self.headers["Idempotency-Key"]
        if key not in answered:
            # `arguments` is what a model wrote; who asks stands in tenant, subject, member and context
            answered[key] = weather(call["arguments"]["city"])
        return self.answer(*answered[key])

    def answer(self, status: int, value: dict) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    port = int(os.environ.get("PORT", "9000"))
    print(f"listening on http://127.0.0.1:{port}/weather")
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
