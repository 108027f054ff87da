"""A small HTTP server that plays scripted answers and keeps the exact bytes it was sent.

    async with WebhookServer(Reply(503), Reply(body={"ok": True})) as server:
        ...                                    # POST to server.url
        assert server.requests[0].headers["webhook-id"] == "call_1"

Each request takes the next reply of the script; when the script is used up, the last reply is played again (an empty script
answers 200 with `{}`). A reply may also be a function of the request. It listens on 127.0.0.1 only.
"""

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

Ending = Literal["normal", "close", "reset", "hang", "cut", "endless"]


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer. `body`: bytes or text as they are, anything else as JSON (with its content type).

    `ending`: `normal`; `close` or `reset` the connection without an answer; `hang` without an answer for ever; `cut` the
    connection in the middle of the body; `endless` repeats the body as chunks for ever. `keep_alive` False closes the
    connection after the answer. `drip_seconds` waits between single bytes of the body.
    """

    status: int = 200
    body: Any = b""
    headers: Mapping[str, str] | Sequence[tuple[str, str]] = field(default_factory=dict)
    delay_seconds: float = 0.0
    drip_seconds: float = 0.0
    ending: Ending = "normal"
    keep_alive: bool = True

    def payload(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()

    def head(self, length: int | None) -> bytes:
        pairs = list(self.headers.items() if isinstance(self.headers, Mapping) else self.headers)
        names = {name.lower() for name, _ in pairs}
        if "content-type" not in names and not isinstance(self.body, bytes | str):
            pairs.append(("content-type", "application/json"))
        if length is None:
            pairs.append(("transfer-encoding", "chunked"))
        elif "content-length" not in names and self.status != 204:
            pairs.append(("content-length", str(length)))
        if not self.keep_alive:
            pairs.append(("connection", "close"))
        lines = [f"HTTP/1.1 {self.status} Scripted", *(f"{name}: {value}" for name, value in pairs)]
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came: header names in lower case, `head` and `body` as the very bytes."""

    method: str
    path: str
    headers: Mapping[str, str]
    head: bytes
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class WebhookServer:
    """See the module's text. `connections` counts those accepted, `hung_up` those that the client ended."""

    def __init__(
        self, *script: Reply | Callable[[Received], Reply], path: str = "/hook", tls: ssl.SSLContext | None = None
    ) -> None:
        self.script = list(script)
        self.requests: list[Received] = []
        self.connections = 0
        self.hung_up = 0
        self.port = 0
        self._path = path
        self._tls = tls
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return self.url_at("127.0.0.1")

    def url_at(self, host: str) -> str:
        """The URL of this server under another name for its address."""
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}{self._path}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def received(self, count: int, seconds: float = 5.0) -> None:
        """Wait until that many requests have come."""
        await self._until(lambda: len(self.requests) >= count, seconds)

    async def lost(self, count: int, seconds: float = 5.0) -> None:
        """Wait until that many connections were ended by the client."""
        await self._until(lambda: self.hung_up >= count, seconds)

    async def _until(self, reached: Callable[[], bool], seconds: float) -> None:
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(reached)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        number = self.connections
        try:
            while (request := await _read(reader, number)) is not None:
                self.requests.append(request)
                await self._tell()
                if not await self._play(self._next(request), reader, writer):
                    return
            self.hung_up += 1
        except (ConnectionError, asyncio.IncompleteReadError):
            self.hung_up += 1
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)
            writer.close()
            await self._tell()

    def _next(self, request: Received) -> Reply:
        index = min(len(self.requests), len(self.script)) - 1
        chosen = self.script[index] if self.script else Reply(body={})
        return chosen if isinstance(chosen, Reply) else chosen(request)

    async def _play(self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Play one reply; whether the connection goes on."""
        await asyncio.sleep(reply.delay_seconds)
        match reply.ending:
            case "close":
                return False
            case "reset":
                raw: socket.socket = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
                return False
            case "hang":
                if await reader.read(1) == b"":
                    raise ConnectionResetError
                return False
            case "endless":
                await self._stream_for_ever(reply, writer)
        payload = reply.payload()
        writer.write(reply.head(len(payload)))
        if reply.ending == "cut":
            writer.write(payload[: len(payload) // 2])
            await writer.drain()
            return False
        for part in [payload] if not reply.drip_seconds else [payload[i : i + 1] for i in range(len(payload))]:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(reply.drip_seconds)
        return reply.keep_alive

    async def _stream_for_ever(self, reply: Reply, writer: asyncio.StreamWriter) -> None:
        """Until the client hangs up (ConnectionError)."""
        payload = reply.payload() or b"x" * 65536
        writer.write(reply.head(None))
        while True:
            writer.write(b"%x\r\n%b\r\n" % (len(payload), payload))
            await writer.drain()
            await asyncio.sleep(0)
            if writer.transport.is_closing():
                raise ConnectionResetError


async def _read(reader: asyncio.StreamReader, connection: int) -> Received | None:
    """One request, or None at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip(" ") for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = await _read_chunks(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(method, path, headers, head, body, connection)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
    return body
