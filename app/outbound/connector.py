"""The guarded way from a name to a connection.

A name is resolved once; the addresses that were judged are the ones the connection is made to, while `Host`, SNI and the
certificate check stay those of the name. The last look is at the address a socket is opened for: no spelling of a host
gets past it.
"""

import ipaddress
import socket
import ssl
from typing import Any

from aiohttp import TCPConnector
from aiohttp.abc import AbstractResolver, ResolveResult

from app.outbound.address_guard import AddressGuard, RefusedAddress

KEEP_IDLE_SECONDS = 4.0
"""Below the five seconds after which many servers close an idle connection, so that a request seldom meets the closing."""


class RefusedSocket(RefusedAddress, OSError):
    """Refused at the last look. An OSError, since the race of several addresses swallows any other exception."""


class GuardedResolver(AbstractResolver):
    """Gives aiohttp the checked addresses of a name; raises `RefusedAddress` if any of them is refused."""

    def __init__(self, guard: AddressGuard) -> None:
        self._guard = guard

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        wanted = {socket.AF_INET: 4, socket.AF_INET6: 6}.get(family)
        found = [ip for ip in await self._guard.addresses(host, port) if wanted in (None, ip.version)]
        if not found:
            raise OSError("the host name has no address of the wanted kind")
        return [
            ResolveResult(
                hostname=host,
                host=str(ip),
                port=port,
                family=socket.AF_INET if ip.version == 4 else socket.AF_INET6,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for ip in found
        ]

    async def close(self) -> None:
        """Nothing is held."""


class _FailingResolver(GuardedResolver):
    """A refusal looks like any other failed connection, for clients that know nothing of the guard."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        try:
            return await super().resolve(host, port, family)
        except RefusedAddress as error:
            raise RefusedSocket(str(error)) from None


def guarded_connector(
    guard: AddressGuard, ssl_context: ssl.SSLContext, *, keep_alive: bool = True, refuse_as_failure: bool = False
) -> TCPConnector:
    """A connector of aiohttp that opens sockets to permitted addresses only. To be made inside a running loop.

    Without `keep_alive` each request has a connection of its own. With `refuse_as_failure` a refused name is an OSError.
    """

    def open_socket(info: tuple[Any, Any, int, str, Any]) -> socket.socket:
        family, kind, protocol, _, address = info
        if not guard.permits(ipaddress.ip_address(address[0])):
            raise RefusedSocket("the address of the connection is not public")
        return socket.socket(family=family, type=kind, proto=protocol)

    resolver = _FailingResolver(guard) if refuse_as_failure else GuardedResolver(guard)
    # No limit of connections: a slow tool must not make the others wait. Runs and calls at once are limited elsewhere.
    if not keep_alive:
        return TCPConnector(ssl=ssl_context, resolver=resolver, socket_factory=open_socket, limit=0, force_close=True)
    return TCPConnector(
        ssl=ssl_context, resolver=resolver, socket_factory=open_socket, limit=0, keepalive_timeout=KEEP_IDLE_SECONDS
    )
