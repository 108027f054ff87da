"""A chat in a browser. The backend (this file) opens sessions and hands out tokens; the browser talks to Rondo itself.

    RONDO_KEY=… RONDO_URL=http://127.0.0.1:8080/v1 python3 examples/chat/app.py

Rondo must allow the page's origin: RONDO_CORS_ORIGINS=http://127.0.0.1:9100. With MODEL=openai/gpt-5-mini (and a
key for it at Rondo) a real model answers. Standard library only.
"""

import json
import os
import sys
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

RONDO = os.environ.get("RONDO_URL", "http://127.0.0.1:8080/v1")
KEY = os.environ["RONDO_KEY"]
MODEL = os.environ.get("MODEL", "scripted/chat")
FILES = {"/": ("index.html", "text/html"), "/chat.js": ("chat.js", "text/javascript"), "/chat.css": ("chat.css", "text/css")}
SCRIPT = [
    {"text": "This reply was written by hand; with a real model it would answer you.", "chunk_chars": 3, "delay_ms": 20}
]


def ask(path: str, body: dict) -> dict:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    request = urllib.request.Request(RONDO + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def open_chat(session_id: str | None) -> dict:
    """What a browser needs. Whose session it is comes from your own login, never from the browser."""
    if session_id is None:
        config = {"script": SCRIPT} if MODEL.startswith("scripted/") else {}
        visitor = {"type": "visitor", "id": "1"}
        session_id = ask("/sessions", {"tenant": visitor, "model": MODEL, "config": config})["id"]
    token = ask(f"/sessions/{session_id}/tokens", {"ttl_seconds": 3600, "can": ["read", "run"]})
    return {"rondo": RONDO, "session": session_id, "token": token["token"]}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path not in FILES:
            return self.send_error(404)
        name, kind = FILES[self.path]
        self.reply((Path(__file__).parent / name).read_bytes(), kind)

    def do_POST(self) -> None:
        if self.path != "/chat":
            return self.send_error(404)
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.reply(json.dumps(open_chat(given.get("session"))).encode(), "application/json")

    def reply(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "9100"))), Handler)
    print(f"chat on http://127.0.0.1:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sys.exit(0)
