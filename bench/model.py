"""A model API and a tool's webhook that always answer the same, and cost as little as Python can.

A model's name is its script: words with a number, in any order, each of which may be left out.

    mock-chunks200-gap5-wait0-tools1

`chunks`: pieces of the answer (`w000`, `w001`, …); `gap`: milliseconds between them, 0 for all at once; `wait`:
milliseconds before the first byte; `tools`: how many turns after the last user message ask for a tool first.
"""

import argparse
import asyncio
import functools
import re
from collections.abc import Callable
from typing import Any

import orjson
import uvloop

WORD = re.compile(r"-(chunks|gap|wait|tools)(\d+)")
PATH = "/v1/chat/completions"
TOOL_PATH = "/tools/search"
TOOL_ARGUMENTS = '{"query":"red shoes"}'
TOOL_ANSWER = orjson.dumps({"items": [{"id": 1, "name": "trainers"}, {"id": 2, "name": "sandals"}]})

_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
_END = b"0\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def model_name(*, chunks: int = 200, gap: int = 0, wait: int = 0, tools: int = 0) -> str:
    return f"mock-chunks{chunks}-gap{gap}-wait{wait}-tools{tools}"


@functools.cache
def script_of(name: str) -> dict[str, int]:
    return {"chunks": 200, "gap": 0, "wait": 0, "tools": 0} | {word: int(number) for word, number in WORD.findall(name)}


def asked_turns(messages: list[dict[str, Any]]) -> int:
    """How many turns since the last user message asked for tools."""
    turns = 0
    for message in reversed(messages):
        if message["role"] == "user":
            break
        turns += bool(message.get("tool_calls"))
    return turns


def _piece(model: str, delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    body = {
        "id": "chatcmpl-mock", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": model,
        "system_fingerprint": "fp_mock",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}], **more,
    }  # fmt: skip
    return _framed(b"data: " + orjson.dumps(body) + b"\n\n")


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _ending(model: str, finish: str, tokens: int | None) -> bytes:
    """The finish reason, the usage where it was asked for, and the end of the stream."""
    last = _piece(model, {}, finish)
    if tokens is not None:
        usage = {"prompt_tokens": 50, "completion_tokens": tokens, "total_tokens": 50 + tokens}
        last += _piece(model, {}, choices=[], usage=usage)
    return last + _framed(b"data: [DONE]\n\n") + _END


@functools.cache
def answer_pieces(model: str, chunks: int, with_usage: bool) -> tuple[bytes, ...]:
    """What goes out in one write each; the first write also opens the message."""
    texts = [_piece(model, {"content": f"w{number % 1000:03d}"}) for number in range(chunks)]
    texts[0] = _piece(model, {"role": "assistant", "content": "", "refusal": None}) + texts[0]
    return (*texts, _ending(model, "stop", chunks if with_usage else None))


@functools.cache
def call_pieces(model: str, tool: str, with_usage: bool) -> tuple[bytes, ...]:
    function = {"name": tool, "arguments": ""}
    opening = {"index": 0, "id": "call_mock", "type": "function", "function": function}
    cuts = range(0, len(TOOL_ARGUMENTS), 12)
    return (
        _piece(model, {"role": "assistant", "content": None, "refusal": None}),
        _piece(model, {"tool_calls": [opening]}),
        *(
            _piece(model, {"tool_calls": [{"index": 0, "function": {"arguments": TOOL_ARGUMENTS[at : at + 12]}}]})
            for at in cuts
        ),
        _ending(model, "tool_calls", 12 if with_usage else None),
    )


class Connection(asyncio.Protocol):
    """One client. Requests have a content-length and are answered one after the other."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.received = bytearray()
        self.timer: asyncio.TimerHandle | None = None

    def connection_lost(self, error: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        self.received += data
        while self.timer is None and (request := self._take_request()) is not None:
            self._answer(*request)

    def _take_request(self) -> tuple[bytes, bytes] | None:
        end = self.received.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = bytes(self.received[:end])
        length = _LENGTH.search(head)
        stop = end + 4 + (int(length[1]) if length else 0)
        if len(self.received) < stop:
            return None
        body = bytes(self.received[end + 4 : stop])
        del self.received[:stop]
        return head.split(b" ", 2)[1], body

    def _answer(self, path: bytes, body: bytes) -> None:
        if path.endswith(PATH.encode()):
            self._chat(orjson.loads(body))
        elif path == TOOL_PATH.encode():
            self._whole(TOOL_ANSWER)
        else:
            self._whole(b"{}")

    def _whole(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.transport.write(head + body)

    def _chat(self, request: dict[str, Any]) -> None:
        model = request["model"]
        script = script_of(model)
        with_usage = bool((request.get("stream_options") or {}).get("include_usage"))
        tools = request.get("tools") or []
        if tools and asked_turns(request["messages"]) < script["tools"]:
            pieces = call_pieces(model, tools[0]["function"]["name"], with_usage)
        else:
            pieces = answer_pieces(model, script["chunks"], with_usage)
        start = functools.partial(self._play, pieces, script["gap"] / 1000)
        if script["wait"]:
            self._later(asyncio.get_running_loop().time() + script["wait"] / 1000, start)
        else:
            start()

    def _play(self, pieces: tuple[bytes, ...], gap: float) -> None:
        if gap == 0:
            self.transport.write(_STREAM_HEAD + b"".join(pieces))
            return
        self.transport.write(_STREAM_HEAD + pieces[0])
        self._next(pieces, 1, asyncio.get_running_loop().time(), gap)

    def _next(self, pieces: tuple[bytes, ...], number: int, started: float, gap: float) -> None:
        """Every piece has its time since the start, so that a late one does not delay the rest."""

        def write() -> None:
            self.transport.write(pieces[number])
            if number + 1 < len(pieces):
                self._next(pieces, number + 1, started, gap)

        self._later(started + number * gap, write)

    def _later(self, when: float, act: Callable[[], None]) -> None:
        def fire() -> None:
            self.timer = None
            act()
            if self.received:
                self.data_received(b"")

        self.timer = asyncio.get_running_loop().call_at(when, fire)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port, backlog=4096)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(parser.parse_args().port))
