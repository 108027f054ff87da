"""The one way to an address that a caller gave (tools, subscriptions): a guarded, bounded POST.

It follows no redirect, keeps no cookie, reads no proxy or credentials from the environment, and holds no more of an answer
in memory than it may have. aiohttp is used as it is: httpx's client would follow, keep and read some of these, and its
transport onto aiohttp rewrites the escapes of a URL.
"""

import asyncio
import re
import ssl
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from os import strerror
from time import perf_counter
from types import TracebackType
from typing import Self

import aiohttp
import httpx
from yarl import URL

from app.outbound.address_guard import AddressGuard, RefusedAddress
from app.outbound.connector import guarded_connector

MAX_ANSWER_BYTES = 2 * 1024 * 1024
USER_AGENT = "Rondo/1"
_PART_BYTES = 256 * 1024

_ILLEGAL_VALUE = re.compile(r"[^\t\x20-\x7e]|^[\t ]|[\t ]$")
_ILLEGAL_NAME = re.compile(r"[^!#$%&'*+\-.^_`|~0-9A-Za-z]|^$")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. Header names are lower-case; `body` is not compressed; `seconds` from the call to its last byte."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    seconds: float


class FailureKind(StrEnum):
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    TLS = "tls"
    REFUSED_ADDRESS = "refused_address"
    TOO_LARGE = "too_large"
    BAD_HEADER = "bad_header"
    BAD_ANSWER = "bad_answer"


class SendFailure(Exception):
    """A POST that has no whole answer. `cause` is for log and trace: it holds no secret, no header and no host.

    `status` is set where the answer had begun. The address may have acted on the request unless the kind is
    `refused_address` or `bad_header`.
    """

    def __init__(self, kind: FailureKind, cause: str, status: int | None = None) -> None:
        super().__init__(f"{kind}: {cause}")
        self.kind = kind
        self.cause = cause
        self.status = status

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed at once: only a connection that failed may."""
        return self.kind is FailureKind.CONNECTION


class Sender:
    """Sends POSTs; shared by all that is called in a process. Close it, or use it as an async context manager."""

    def __init__(
        self,
        guard: AddressGuard,
        *,
        ssl_context: ssl.SSLContext | None = None,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        self._guard = guard
        self._max_answer_bytes = max_answer_bytes
        # Which authorities are trusted may come from SSL_CERT_FILE, as elsewhere; proxies and credentials may not.
        self._ssl_context = ssl_context or httpx.create_ssl_context()
        self._kept: aiohttp.ClientSession | None = None
        self._fresh: aiohttp.ClientSession | None = None

    def _session(self, *, fresh: bool) -> aiohttp.ClientSession:
        """Made at the first use, since it belongs to the running loop."""
        if fresh:
            self._fresh = self._fresh or self._new_session(keep_alive=False)
            return self._fresh
        self._kept = self._kept or self._new_session(keep_alive=True)
        return self._kept

    def _new_session(self, *, keep_alive: bool) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=guarded_connector(self._guard, self._ssl_context, keep_alive=keep_alive),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections; calls under way fail."""
        for session in (self._kept, self._fresh):
            if session is not None:
                await session.close()

    async def post(
        self, url: str, body: bytes, headers: Mapping[str, str], timeout_seconds: float, *, fresh: bool = False
    ) -> Answer:
        """Send `body` as it is and read the whole answer, whatever its status. Raises `SendFailure`.

        `timeout_seconds` covers all of it: name lookup, connection, sending and the last byte of the answer. `fresh` uses
        a connection of its own: a kept one may have been closed by the other side just now, which cannot be told from a
        request that was lost. Cancelling it closes the connection.
        """
        started = perf_counter()
        try:
            target = self._guard.check_url(url)
        except RefusedAddress as refused:
            raise SendFailure(FailureKind.REFUSED_ADDRESS, str(refused)) from None
        checked = _checked_headers(headers)
        progress = _Progress()
        try:
            async with asyncio.timeout(timeout_seconds):
                with _failures_named():
                    raw = await self._exchange(self._session(fresh=fresh), target.url, body, checked, progress)
            content = self._decoded(raw, progress.headers.get("content-encoding", ""))
        except TimeoutError:
            raise SendFailure(FailureKind.TIMEOUT, "no whole answer within the time-out", progress.status) from None
        except SendFailure as failure:
            failure.status = progress.status
            raise
        return Answer(progress.status or 0, progress.headers, content, perf_counter() - started)

    async def _exchange(
        self, session: aiohttp.ClientSession, url: str, body: bytes, headers: dict[str, str], progress: "_Progress"
    ) -> bytes:
        """Send, and read the bytes of the answer as they come, never more than may be."""
        data: bytes | AsyncIterator[bytes] = body
        if len(body) > _PART_BYTES:
            data, headers = _parts(body), {**headers, "content-length": str(len(body))}
        response = await session.post(URL(url, encoded=True), data=data, headers=headers, allow_redirects=False)
        try:
            progress.status = response.status
            progress.headers = {name.lower(): value for name, value in response.headers.items()}
            if (response.content_length or 0) > self._max_answer_bytes:
                raise self._too_large()
            raw = bytearray()
            async for chunk in response.content.iter_any():
                raw += chunk
                if len(raw) > self._max_answer_bytes:
                    raise self._too_large()
            return bytes(raw)
        except BaseException:
            response.close()
            raise

    def _decoded(self, raw: bytes, encoding: str) -> bytes:
        """`identity` is asked for, but some servers compress all the same."""
        name = encoding.strip().lower()
        if not raw or name in ("", "identity"):
            return raw
        if name not in ("gzip", "x-gzip", "deflate"):
            raise SendFailure(FailureKind.BAD_ANSWER, "the answer has an encoding that was not asked for")
        content = inflate(raw, self._max_answer_bytes, gzip="gzip" in name)
        if content is None:
            raise SendFailure(FailureKind.BAD_ANSWER, "the answer is compressed wrongly")
        if len(content) > self._max_answer_bytes:
            raise self._too_large()
        return content

    def _too_large(self) -> SendFailure:
        return SendFailure(FailureKind.TOO_LARGE, f"the answer is larger than {self._max_answer_bytes} bytes")


@dataclass(slots=True)
class _Progress:
    """How far an answer came, for whoever has to tell why it went no further."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def inflate(raw: bytes, limit: int, *, gzip: bool) -> bytes | None:
    """Decompress at most `limit` + 1 bytes, so that a longer answer shows; None where the bytes are not whole or wrong."""
    window = 31 if gzip else (15 if raw[0] & 0x0F == 8 and int.from_bytes(raw[:2], "big") % 31 == 0 else -15)
    content = b""
    while raw:
        inflater = zlib.decompressobj(window)
        try:
            content += inflater.decompress(raw, limit + 1 - len(content))
        except zlib.error:
            return None
        if len(content) > limit:
            return content
        if not inflater.eof:
            return None
        raw = inflater.unused_data if gzip else b""
    return content


async def _parts(body: bytes) -> AsyncIterator[bytes]:
    """A long body goes out in parts, so that writing it does not hold up everything else."""
    for start in range(0, len(body), _PART_BYTES):
        yield body[start : start + _PART_BYTES]


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Ours and the given ones. An exception of a library would show the value, which may be a secret."""
    checked = {"user-agent": USER_AGENT}
    for name, value in headers.items():
        if _ILLEGAL_NAME.search(name) or _ILLEGAL_VALUE.search(value):
            raise SendFailure(FailureKind.BAD_HEADER, "a header cannot be sent as it is")
        checked[name.lower()] = value
    checked["accept-encoding"] = "identity"
    return checked


@contextmanager
def _failures_named() -> Iterator[None]:
    """Turn what the libraries raise into a `SendFailure`; their texts, which may show the request, are dropped."""
    try:
        yield
    except RefusedAddress as refused:
        raise SendFailure(FailureKind.REFUSED_ADDRESS, str(refused)) from None
    except aiohttp.InvalidURL:
        raise SendFailure(FailureKind.REFUSED_ADDRESS, "the URL cannot be called") from None
    except aiohttp.ClientResponseError:
        raise SendFailure(FailureKind.BAD_ANSWER, "the answer is not valid HTTP") from None
    except (aiohttp.ClientError, OSError) as error:
        raise _connection_failure(error) from None


def _connection_failure(error: BaseException) -> SendFailure:
    chain = [error]
    while len(chain) < 10 and (below := chain[-1].__cause__ or chain[-1].__context__):
        chain.append(below)
    if any(isinstance(link, RefusedAddress) for link in chain):
        return SendFailure(FailureKind.REFUSED_ADDRESS, "the address of the connection is not public")
    if any(isinstance(link, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError) for link in chain):
        return SendFailure(FailureKind.TLS, "the certificate was not accepted")
    if any(isinstance(link, aiohttp.ClientSSLError | ssl.SSLError) for link in chain):
        return SendFailure(FailureKind.TLS, "no TLS connection could be made")
    if any(isinstance(link, aiohttp.ClientConnectorDNSError) for link in chain):
        return SendFailure(FailureKind.CONNECTION, "the host name does not resolve")
    numbers = [link.errno for link in chain if isinstance(link, OSError) and link.errno]
    reason = strerror(numbers[-1]).lower() if numbers else "closed by the other side"
    return SendFailure(FailureKind.CONNECTION, f"the connection failed: {reason}")
