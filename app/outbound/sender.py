"""The one way to an address that a caller gave (tools, subscriptions): a guarded, bounded POST.

It follows no redirect, keeps no cookie, reads no proxy or credentials from the environment, and holds no more of an answer
in memory than it may have. It uses httpx's transport interface, without httpx's client, which would do some of these.
"""

import asyncio
import re
import ssl
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from os import strerror
from time import perf_counter
from types import TracebackType
from typing import Self

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

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

    def __init__(self, kind: FailureKind, cause: str, *, status: int | None = None) -> None:
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
        context = ssl_context or httpx.create_ssl_context()
        self._kept = self._transport(context, keep_alive=True)
        self._fresh = self._transport(context, keep_alive=False)

    def _transport(self, context: ssl.SSLContext, *, keep_alive: bool) -> AiohttpTransport:
        def session() -> aiohttp.ClientSession:
            connector = guarded_connector(self._guard, context, keep_alive=keep_alive)
            return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)

        return AiohttpTransport(verify=context, trust_env=False, client=session)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections; calls under way fail."""
        await self._kept.aclose()
        await self._fresh.aclose()

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
        request = _request(target.url, body, _checked_headers(headers))
        status: int | None = None
        try:
            async with asyncio.timeout(timeout_seconds):
                with _failures_named():
                    response = await (self._fresh if fresh else self._kept).handle_async_request(request)
                    status = response.status_code
                    try:
                        raw = await self._read(response)
                    finally:
                        await response.aclose()
        except TimeoutError:
            raise SendFailure(FailureKind.TIMEOUT, "no whole answer within the time-out", status=status) from None
        answer_headers = dict(response.headers)
        content = self._decoded(raw, answer_headers.get("content-encoding", ""), status)
        return Answer(status, answer_headers, content, perf_counter() - started)

    async def _read(self, response: httpx.Response) -> bytes:
        """The bytes of the answer as they came, never more than may be."""
        limit = self._max_answer_bytes
        declared = response.headers.get("content-length", "")
        if declared.isdecimal() and len(declared) < 20 and int(declared) > limit:
            raise self._too_large(response.status_code)
        chunks: list[bytes] = []
        size = 0
        async for chunk in response.aiter_raw():
            size += len(chunk)
            if size > limit:
                raise self._too_large(response.status_code)
            chunks.append(chunk)
        return b"".join(chunks)

    def _decoded(self, raw: bytes, encoding: str, status: int) -> bytes:
        """`identity` is asked for, but some servers compress all the same."""
        name = encoding.strip().lower()
        if not raw or name in ("", "identity"):
            return raw
        if name not in ("gzip", "x-gzip", "deflate"):
            raise SendFailure(FailureKind.BAD_ANSWER, "the answer has an encoding that was not asked for", status=status)
        content = inflate(raw, self._max_answer_bytes, gzip="gzip" in name)
        if content is None:
            raise SendFailure(FailureKind.BAD_ANSWER, "the answer is compressed wrongly", status=status)
        if len(content) > self._max_answer_bytes:
            raise self._too_large(status)
        return content

    def _too_large(self, status: int) -> SendFailure:
        cause = f"the answer is larger than {self._max_answer_bytes} bytes"
        return SendFailure(FailureKind.TOO_LARGE, cause, status=status)


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


class _Parts(httpx.AsyncByteStream):
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._body), _PART_BYTES):
            yield self._body[start : start + _PART_BYTES]


def _request(url: str, body: bytes, headers: dict[str, str]) -> httpx.Request:
    """A long body goes out in parts, so that writing it does not hold up everything else; its length is still told."""
    if len(body) <= _PART_BYTES:
        return httpx.Request("POST", url, headers=headers, content=body)
    return httpx.Request("POST", url, headers={**headers, "content-length": str(len(body))}, stream=_Parts(body))


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
    except (httpx.UnsupportedProtocol, aiohttp.InvalidURL, httpx.InvalidURL):
        raise SendFailure(FailureKind.REFUSED_ADDRESS, "the URL cannot be called") from None
    except aiohttp.ClientResponseError:
        raise SendFailure(FailureKind.BAD_ANSWER, "the answer is not valid HTTP") from None
    except (httpx.TransportError, aiohttp.ClientError, OSError) as error:
        if isinstance(error, TimeoutError):
            raise
        raise _connection_failure(error) from None


def _connection_failure(error: BaseException) -> SendFailure:
    chain = [error]
    while len(chain) < 10 and (below := chain[-1].__cause__ or chain[-1].__context__):
        chain.append(below)
    if any(isinstance(link, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError) for link in chain):
        return SendFailure(FailureKind.TLS, "the certificate was not accepted")
    if any(isinstance(link, aiohttp.ClientSSLError | ssl.SSLError) for link in chain):
        return SendFailure(FailureKind.TLS, "no TLS connection could be made")
    if any(isinstance(link, aiohttp.ClientConnectorDNSError) for link in chain):
        return SendFailure(FailureKind.CONNECTION, "the host name does not resolve")
    numbers = [link.errno for link in chain if isinstance(link, OSError) and link.errno]
    reason = strerror(numbers[-1]).lower() if numbers else "closed by the other side"
    return SendFailure(FailureKind.CONNECTION, f"the connection failed: {reason}")
