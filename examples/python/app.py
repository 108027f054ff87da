"""A client application in Python: hosts two tools, lets an agent listen for an event, fires it, and follows the run.

    pip install standardwebhooks
    RONDO_KEY=… python app.py          plays it once;  `python app.py serve` only hosts the tools, until Ctrl-C

`RONDO_URL` is http://127.0.0.1:8080/v1 unless set, `MODEL` a scripted one that costs nothing, `PORT` a free one. Start the
service with RONDO_ALLOW_PRIVATE_WEBHOOKS=127.0.0.0/8, since the tools are on this machine.
"""

import json
import os
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

RONDO = os.environ.get("RONDO_URL", "http://127.0.0.1:8080/v1")
KEY = os.environ["RONDO_KEY"]
MODEL = os.environ.get("MODEL", "scripted/shop")
SCRIPT = [
    {"tool_calls": [{"name": "order_lookup", "arguments": {"order_id": "7"}}]},
    {"tool_calls": [{"name": "order_note", "arguments": {"order_id": "7", "text": "Two lamps: pack them well."}}]},
    "Order 7 has a note for the packers.",
]
ORDERS = {"7": {"id": "7", "lines": [{"article": "lamp", "count": 2}]}}
ENDINGS = ("run.completed", "run.incomplete", "run.failed", "run.cancelled")

notes: dict[str, tuple[int, Any]] = {}
"""Answers by Idempotency-Key: a call that comes twice is carried out once. A real application keeps this in its database."""
secrets: dict[str, str] = {}


def order_lookup(call: dict[str, Any]) -> tuple[int, Any]:
    # `arguments` is what a model wrote; who asks stands in tenant, subject, member and context
    order = ORDERS.get(call["arguments"]["order_id"])
    return (200, {"items": [order]}) if order else (404, {"message": "There is no such order. Known is: 7."})


def order_note(call: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"saved": True, "by": call["context"]["user"]}


TOOLS = {
    "order_lookup": (order_lookup, "Finds an order with its lines.", {"order_id": {"type": "string"}}),
    "order_note": (
        order_note,
        "Writes a note on an order, for the packers.",
        {"order_id": {"type": "string"}, "text": {"type": "string"}},
    ),
}


class Tools(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        name = self.path.strip("/")
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if name not in TOOLS:
            return self.answer(404, {"message": "no such tool"})
        try:
            Webhook(secrets[name]).verify(body, dict(self.headers))
        except WebhookVerificationError:
            return self.answer(401, {"message": "not signed"})
        key = self.headers["Idempotency-Key"]
        if key not in notes:
            notes[key] = TOOLS[name][0](json.loads(body)["data"])
        return self.answer(*notes[key])

    def answer(self, status: int, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


def request(method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
    """The open response; raises urllib.error.HTTPError for a refusal."""
    data = None if body is None else json.dumps(body).encode()
    named = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json", **(headers or {})}
    return urllib.request.urlopen(urllib.request.Request(RONDO + path, data, named, method=method))


def ask(method: str, path: str, body: Any = None) -> Any:
    with request(method, path, body) as response:
        return json.load(response)


def register(port: int) -> None:
    """A tool's secret is shown when it is new; for one that is there already, a new one is made."""
    for name, (_, description, properties) in TOOLS.items():
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        body = {"description": description, "parameters": parameters, "url": f"http://127.0.0.1:{port}/{name}"}
        made = ask("PUT", f"/tools/{name}", body)
        secrets[name] = made.get("secret") or ask("POST", f"/tools/{name}/rotate-secret")["secret"]


def agent() -> str:
    """The id of the agent `order-notes`, made anew or brought to what stands here."""
    body = {
        "name": "order-notes", "model": MODEL,
        "system_prompt": "You help the packers. Look at the order, and write a note on it.",
        "event_triggers": ["order.paid"], "allowed_tools": list(TOOLS), "debounce_seconds": 0, "config": {"script": SCRIPT},
    }  # fmt: skip
    try:
        made: str = ask("POST", "/agents", body)["id"]
        return made
    except urllib.error.HTTPError as refused:
        if json.load(refused)["code"] != "agent_exists":
            raise
        known: str = next(one["id"] for one in ask("GET", "/agents?limit=200")["data"] if one["name"] == body["name"])
        ask("PATCH", f"/agents/{known}", body)
        return known


def follow(run_id: str) -> dict[str, Any]:
    """Print what the run does, and come back where the line was cut; the run at its end."""
    last = "0"
    while True:
        with request("GET", f"/runs/{run_id}/events", headers={"Last-Event-ID": last}) as stream:
            for line in stream:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "id":
                    last = value
                elif name == "data":
                    event = json.loads(value)
                    print(event["type"], event.get("tool", ""))
                    if event["type"] in ENDINGS:
                        run: dict[str, Any] = event["run"]
                        return run


def main() -> int:
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "0"))), Tools)
    register(server.server_address[1])
    print(f"tools on http://127.0.0.1:{server.server_address[1]}", flush=True)
    if sys.argv[1:] == ["serve"]:
        server.serve_forever()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    agent_id = agent()
    event = {
        "event": "order.paid", "tenant": {"type": "shop", "id": 1}, "subject": {"type": "order", "id": 7},
        "payload": {"order_id": "7"}, "context": {"user": 42},
    }  # fmt: skip
    fired = [fired["run_id"] for fired in ask("POST", "/triggers", event)["fired"] if fired["agent_id"] == agent_id]
    run = follow(fired[0])
    print("answer:", run["output"])
    return 0 if run["status"] == "completed" else 1


if __name__ == "__main__":
    sys.exit(main())
