"""A model API made of bytes: plays exactly what a test wrote down, and keeps what it was sent.

    async with ModelServer() as server:
        server.play(sse({"choices": [...]}, DONE))            # one answer for each request, in order
        server.play(Answer([b"data: x", 0.01, b"\\n\\n"], end="reset"))
        client = OpenAIClient(http, provider="openai", base_url=server.base_url)
        ...
        assert server.requests[0].json["model"] == "gpt"

An answer is a list of steps: bytes are written as one piece (with TCP_NODELAY, and a pause of a loop turn behind them),
a number is a wait in seconds. `end` tells what follows the last step. A request beyond the played answers gets a 500.
"""

import asyncio
import json
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

DONE = "[DONE]"
CHUNK = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "gpt-test"}


@dataclass(frozen=True)
class Answer:
    """What one request gets.

    `end`: `finish` ends the body properly and keeps the connection; `close` ends it properly and closes; `cut` closes in
    the middle of the chunked body; `reset` does so with a RST; `hold` says nothing more and keeps the socket open until
    the other side or the test ends. `status` None drops the connection before any answer.
    """

    steps: Sequence[bytes | float] = ()
    status: int | None = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "text/event-stream"})
    end: Literal["finish", "close", "cut", "reset", "hold"] = "finish"


@dataclass(frozen=True)
class ReceivedRequest:
    method: str
    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def frame(data: Any) -> bytes:
    """One event: a text as it is, anything else as JSON."""
    text = data if isinstance(data, str) else json.dumps(data)
    return b"data: " + text.encode("utf-8", "surrogatepass") + b"\n\n"


def sse(*frames: Any, end: Literal["finish", "close", "cut", "reset", "hold"] = "finish") -> Answer:
    """A stream of these events; bytes stand as they are, and a number waits."""
    return Answer([item if isinstance(item, bytes | float) else frame(item) for item in frames], end=end)


def json_answer(value: Any, status: int = 200, **headers: str) -> Answer:
    """A whole JSON answer; header names are given with `_` for `-`."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return Answer([json.dumps(value).encode()], status, {"Content-Type": "application/json", **named})


def chunk(content: str | None = None, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """A chat-completions chunk with one choice."""
    if content is not None:
        delta["content"] = content
    return {**CHUNK, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def chat_usage(prompt: int, completion: int, **details: Any) -> dict[str, Any]:
    """The last chunk, which only counts tokens; `details` are further fields of the count."""
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, **details}
    return {**CHUNK, "choices": [], "usage": counts}


class ModelServer:
    """Listens on a free local port, which stays the same after it has stopped.

    `connections` counts those accepted; `asked` is set by the first request, `closed_by_client` once the other side ended
    a connection.
    """

    def __init__(self) -> None:
        self.requests: list[ReceivedRequest] = []
        self.connections = 0
        self.asked = asyncio.Event()
        self.closed_by_client = asyncio.Event()
        self._answers: list[Answer] = []
        self._server: asyncio.Server | None = None
        self._port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def base_url(self) -> str:
        """As `OPENAI_BASE_URL` has it; Anthropic's clients want `address`."""
        return f"{self.address}/v1"

    def play(self, *answers: Answer) -> None:
        """Queue answers for the requests to come."""
        self._answers.extend(answers)

    @property
    def left(self) -> int:
        """How many answers nobody has asked for yet."""
        return len(self._answers)

    def forget(self) -> None:
        """Begin anew for another test: no answers, no requests."""
        self._answers.clear()
        self.requests.clear()
        self.asked.clear()

    async def __aenter__(self) -> "ModelServer":
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.closed_by_client.set()
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await _request(reader)
        self.requests.append(request)
        self.asked.set()
        answer = await self._answer(request)
        if answer.status is None:
            return False
        lines = [f"HTTP/1.1 {answer.status} Played", "Transfer-Encoding: chunked"]
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        for step in answer.steps:
            if isinstance(step, bytes):
                writer.write(b"%x\r\n%b\r\n" % (len(step), step))
                await writer.drain()
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(step)
        return await self._end(answer.end, reader, writer)

    async def _answer(self, request: ReceivedRequest) -> Answer:
        return self._answers.pop(0) if self._answers else json_answer({"error": "no answer was played"}, 500)

    async def _end(self, end: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if end in ("finish", "close"):
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return end == "finish"
        if end == "hold":
            await writer.drain()
            await reader.readexactly(1)
        if end == "reset":
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        return False


async def _request(reader: asyncio.StreamReader) -> ReceivedRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return ReceivedRequest(method, path, headers, body)
