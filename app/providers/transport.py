"""One HTTP client for the process, and one exchange with a model API under its own clocks.

httpx's API stands on aiohttp's sockets: httpx's own pool costs several times as much for each chunk, and its cost for each
stream grows with the number of open streams.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from types import TracebackType
from typing import cast

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from app.providers.client import ProviderError, ProviderErrorKind

_DRAIN_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Clocks:
    """How long a model API may be silent.

    `first_content_seconds`: from the request to the first content; comments and empty chunks do not count as any.
    `idle_seconds`: between two bytes once some came, comments included. `after_finish_seconds`: the same once the model
    said that it is done, when nothing but the usage can still come.
    """

    connect_seconds: float = 10.0
    first_content_seconds: float = 300.0
    idle_seconds: float = 120.0
    after_finish_seconds: float = 5.0


def http_client(
    *, keepalive_seconds: float = 30.0, connector: Callable[[ssl.SSLContext], aiohttp.TCPConnector] | None = None
) -> httpx.AsyncClient:
    """The client to share among all model clients of the process; close it with `aclose()`.

    It follows no redirects, keeps no cookies, ignores the environment's proxies and has no read time-out, since each
    exchange has clocks of its own. `connector` makes the sockets, where not every address may be connected to.
    """
    tls = _tls()

    def session() -> aiohttp.ClientSession:
        made = connector(tls) if connector is not None else aiohttp.TCPConnector(
            limit=0, ssl=tls, keepalive_timeout=keepalive_seconds
        )  # fmt: skip
        return aiohttp.ClientSession(connector=made, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)

    return httpx.AsyncClient(
        transport=AiohttpTransport(verify=tls, client=session),
        headers={"User-Agent": "rondo", "Accept-Encoding": "identity"},
        timeout=None,
        follow_redirects=False,
        trust_env=False,
    )


@cache
def _tls() -> ssl.SSLContext:
    """Reading the certificates takes some 25 ms, so once per process."""
    return httpx.create_ssl_context(trust_env=False)


class StallClock:
    """The clocks of one exchange, on a single timer that is looked at again only when it fires.

    While it is entered, silence beyond a limit cancels what is awaited and comes out as `TimeoutError`.
    """

    __slots__ = ("_clocks", "_content", "_finished", "_heard", "_last", "_loop", "_started", "_timeout", "_timer")

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._content = self._heard = self._finished = False
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None
        self._started = self._last = self._loop.time()

    async def __aenter__(self) -> "StallClock":
        await self._timeout.__aenter__()
        self._started = self._last = self._loop.time()
        self._look()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(kind, error, traceback)

    @property
    def connect_seconds(self) -> float:
        return self._clocks.connect_seconds

    def heard(self) -> None:
        """Bytes came, of whatever kind."""
        self._heard = True
        self._last = self._loop.time()

    def content(self) -> None:
        """The model said something."""
        self._content = True

    def finished(self) -> None:
        """The model said that it is done."""
        if not self._finished:
            self._content = self._heard = self._finished = True
            self._look()

    def _due(self) -> float:
        first = float("inf") if self._content else self._started + self._clocks.first_content_seconds
        if not self._heard:
            return first
        idle = self._clocks.after_finish_seconds if self._finished else self._clocks.idle_seconds
        return min(first, self._last + idle)

    def _look(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now, due = self._loop.time(), self._due()
        if due <= now:
            self._timeout.reschedule(now)
        else:
            # The idle clock starts with the first byte, so look again in time for it even if none came yet.
            self._timer = self._loop.call_at(min(due, now + self._clocks.idle_seconds), self._look)


@asynccontextmanager
async def exchange(
    http: httpx.AsyncClient, url: str, headers: Mapping[str, str], body: bytes, clock: StallClock
) -> AsyncIterator[httpx.Response]:
    """POST and give the answer as a stream; everything that goes wrong with the connection is `ProviderError`.

    The socket is closed on the way out unless the answer was read to its end.
    """
    try:
        async with clock:
            timeout = httpx.Timeout(None, connect=clock.connect_seconds)
            request = http.build_request("POST", url, headers=headers, content=body, timeout=timeout)
            response = await http.send(request, stream=True)
            try:
                yield response
            finally:
                await response.aclose()
    except TimeoutError as error:
        raise _unavailable("The provider went silent.") from error
    except (httpx.HTTPError, httpx.InvalidURL, aiohttp.ClientError, ssl.SSLError, OSError) as error:
        raise _unavailable("The provider could not be reached, or dropped the connection.") from error


def _unavailable(message: str) -> ProviderError:
    return ProviderError(ProviderErrorKind.UNAVAILABLE, message)


def byte_stream(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The answer's bytes as they come, decompressed where a server compresses unasked."""
    encoding = response.headers.get("content-encoding", "identity")
    stream = response.aiter_raw() if encoding == "identity" else response.aiter_bytes()
    return cast(AsyncGenerator[bytes, None], stream)


async def read_at_most(response: httpx.Response, limit: int, clock: StallClock) -> bytes:
    """The first `limit` bytes of the answer."""
    body = bytearray()
    async for chunk in byte_stream(response):
        clock.heard()
        body += chunk
        if len(body) >= limit:
            break
    return bytes(body[:limit])


async def drain(chunks: AsyncIterator[bytes]) -> None:
    """Read the end that follows the last frame at once, so that the connection can be used again; never wait for it."""
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for _ in chunks:
                pass
    except (TimeoutError, httpx.HTTPError, aiohttp.ClientError, OSError):
        return
