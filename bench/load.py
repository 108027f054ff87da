"""The load client: HTTP/1.1 by hand over asyncio, one connection a worker.

While an answer comes, only sizes and times are noted; what they mean is worked out when it is complete.
"""

import asyncio
import bisect
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
TIMEOUT_SECONDS = 90.0


class LoadError(Exception):
    """An answer is not what it should be."""


@dataclass(slots=True)
class Answer:
    """One answer: its body without framing, and how long the body was at which moment."""

    sent: float
    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    sizes: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def when(self, offset: int) -> float:
        """When the byte before this offset was there."""
        return self.times[bisect.bisect_left(self.sizes, offset)]

    def json(self) -> Any:
        return orjson.loads(self.body)


class Connection(asyncio.Protocol):
    """A kept connection to a local port."""

    def __init__(self) -> None:
        self.is_open = False
        self._waiter: asyncio.Future[None] | None = None

    @classmethod
    async def to(cls, port: int) -> "Connection":
        _, made = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return made

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.is_open = True

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(LoadError("the connection was closed in the middle of an answer"))

    def close(self) -> None:
        self._transport.close()

    @property
    def head(self) -> bytes:
        """Of the latest answer: its status line and headers."""
        return self._head

    async def request(
        self, method: str, path: str, body: Any = None, headers: Sequence[tuple[str, str]] = (), started: float | None = None
    ) -> Answer:
        """Ask and read the whole answer. `started` is the moment that counts, where it was before this request."""
        data = b"" if body is None else orjson.dumps(body)
        lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", *(f"{name}: {value}" for name, value in headers)]
        if body is not None:
            lines += ["content-type: application/json", f"content-length: {len(data)}"]
        self._raw, self._head, self._left = bytearray(), b"", -1
        self._waiter = asyncio.get_running_loop().create_future()
        self._answer = Answer(time.perf_counter() if started is None else started)
        self._transport.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await self._waiter
        return self._answer

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._waiter is None or self._waiter.done():
            return
        self._raw += data
        if not self._head and not self._read_head():
            return
        ended = self._take_chunks() if self._left < 0 else self._take_plain()
        self._answer.sizes.append(len(self._answer.body))
        self._answer.times.append(now)
        if ended:
            self._waiter.set_result(None)

    def _read_head(self) -> bool:
        end = self._raw.find(b"\r\n\r\n")
        if end < 0:
            return False
        self._head = bytes(self._raw[:end])
        del self._raw[: end + 4]
        self._answer.status = int(self._head[9:12])
        if not _CHUNKED.search(self._head):
            length = _LENGTH.search(self._head)
            self._left = int(length[1]) if length else 0
        return True

    def _take_plain(self) -> bool:
        self._answer.body += self._raw
        self._left -= len(self._raw)
        self._raw.clear()
        return self._left <= 0

    def _take_chunks(self) -> bool:
        raw, body, at = self._raw, self._answer.body, 0
        ended = False
        while not ended and (line_end := raw.find(b"\r\n", at)) >= 0:
            size = int(raw[at:line_end].partition(b";")[0], 16)
            stop = line_end + 2 + size
            if len(raw) < stop + 2:
                break
            body += raw[line_end + 2 : stop]
            at, ended = stop + 2, size == 0
        del raw[:at]
        return ended


@dataclass(slots=True)
class Sample:
    """What a load gave, times in seconds."""

    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    unit: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    events: int = 0
    size: int = 0

    @property
    def done(self) -> int:
        return len(self.unit)

    def add(self, answer: Answer, chunks: int, *, with_gaps: bool) -> None:
        """Every chunk's marker must be there, in order. Raises LoadError."""
        if answer.status >= 300:
            raise LoadError(f"status {answer.status}: {bytes(answer.body[:200])!r}")
        at, earlier = 0, 0.0
        gaps = []
        for number in range(chunks) if with_gaps else (0, chunks - 1):
            at = answer.body.find(b"w%03d" % (number % 1000), at)
            if at < 0:
                raise LoadError(f"chunk {number} is missing; the end is {bytes(answer.body[-200:])!r}")
            when = answer.when(at + 4)
            if number == 0:
                self.first.append(when - answer.sent)
            elif with_gaps:
                gaps.append(when - earlier)
            earlier = when
        self.gaps += gaps
        self.events += answer.body.count(b"\n\n")
        self.size += len(answer.body)


Unit = Callable[[Connection, str], Awaitable[Answer]]
"""One unit of work on a connection, with a model's name: the answer to be timed, read to its end."""


async def run(
    unit: Unit, port: int, model: str, chunks: int, *, workers: int, count: int | None = None, seconds: float | None = None,
    gaps_of_every: int = 5, stagger: float = 0.0,
) -> Sample:  # fmt: skip
    """A closed loop: each worker does one unit after another, until `count` have begun or `seconds` are over."""
    sample = Sample()
    begun = 0
    deadline = None if seconds is None else time.perf_counter() + seconds

    async def work(place: int) -> None:
        nonlocal begun
        await asyncio.sleep(place * stagger)
        connection: Connection | None = None
        while (count is None or begun < count) and (deadline is None or time.perf_counter() < deadline):
            number, begun = begun, begun + 1
            try:
                if connection is None or not connection.is_open:
                    connection = await Connection.to(port)
                started = time.perf_counter()
                answer = await unit(connection, model)
                sample.add(answer, chunks, with_gaps=number % gaps_of_every == 0)
                sample.unit.append(time.perf_counter() - started)
            except (LoadError, OSError, KeyError, ValueError) as error:
                sample.errors.append(f"{type(error).__name__}: {error}")
                if connection is not None:
                    connection.close()
                connection = None
                if len(sample.errors) > 20 and not sample.done:
                    break
        if connection is not None:
            connection.close()

    await asyncio.gather(*(work(place) for place in range(workers)))
    return sample


def quantile(values: Sequence[float], share: float) -> float | None:
    return sorted(values)[round((len(values) - 1) * share)] if values else None
