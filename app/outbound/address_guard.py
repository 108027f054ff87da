"""Which addresses a caller may have this service talk to.

A URL is judged by the address it leads to. By default only public addresses pass; an operator may allow more. A name is
judged by every address it resolves to: one refused address among them refuses the name. Whoever connects must use the
very addresses that were judged (`connector.py` does).
"""

import asyncio
import ipaddress
import re
import socket
import unicodedata
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import SplitResult, quote, urlsplit

import httpx

from app.infra.settings import Network

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Lookup = Callable[[str, int], Awaitable[Sequence[Address]]]
"""Name and port to addresses; raises OSError for a name that has none."""

MAX_URL_CHARS = 4_000
LOOKUP_SECONDS = 5.0

_REFUSED_V4 = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/4", "240.0.0.0/4",
        "168.63.129.16/32",  # public by number, but it is the host of an Azure machine
    )
)  # fmt: skip
_UNICAST_V6 = ipaddress.IPv6Network("2000::/3")
_REFUSED_V6 = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # Teredo, ORCHID, benchmarking and other protocol assignments
        "2001:db8::/32",
        "2002::/16",  # 6to4 leads to whatever IPv4 address stands in it
        "3fff::/20",
    )
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = (0x00005EFE, 0x02005EFE)

_CONTROLS = re.compile(r"[\x00-\x20\x7f\\]")
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC_LABEL = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[0-9]{1,5}")
_SENT_AS_IT_IS = "%/?:@!$&'()*+,;=~[]"
_DOTS = str.maketrans("\u3002\uff0e\uff61", "...")

# A name server that does not answer holds a thread for many seconds, and nothing can call it back; in a pool of their
# own such lookups hold up no other work.
_lookups = ThreadPoolExecutor(max_workers=32, thread_name_prefix="lookup")


class RefusedAddress(Exception):
    """A URL that is not called. The text is for people, without a full stop; it never tells what a name resolves to."""


class UnresolvedName(RefusedAddress):
    """The host of a URL has no address at present."""


@dataclass(frozen=True, slots=True)
class CheckedUrl:
    """A URL in one plain spelling: `host` lower-case ASCII, an address in its canonical form, no credentials or fragment.

    Its path and query are as they were given, other characters than ASCII escaped, so that a signed URL stays valid.
    `address` is set where the host is an address, which has then been judged.
    """

    url: str
    host: str
    port: int
    address: Address | None


def is_public(ip: Address) -> bool:
    """Whether an address is one that anybody on the internet may be sent to.

    An IPv4 address inside an IPv6 one is judged where the network would unwrap it (mapped, NAT64); other embedded forms
    (compatible, 6to4, Teredo, local NAT64) are never public, ISATAP is judged by both its halves.
    """
    if isinstance(ip, ipaddress.IPv4Address):
        return not any(ip in network for network in _REFUSED_V4)
    inner = _unwrapped(ip)
    if inner is not None:
        return is_public(inner)
    if ip not in _UNICAST_V6 or any(ip in network for network in _REFUSED_V6):
        return False
    low = int(ip) & (2**64 - 1)
    return low >> 32 not in _ISATAP or is_public(ipaddress.IPv4Address(low & (2**32 - 1)))


def _unwrapped(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that a packet to `ip` would really reach."""
    return ipaddress.IPv4Address(int(ip) & (2**32 - 1)) if ip in _NAT64 else ip.ipv4_mapped


async def system_lookup(host: str, port: int) -> list[Address]:
    """What the operating system resolves a name to, in its order, without doubles."""
    loop = asyncio.get_running_loop()
    infos = await loop.run_in_executor(_lookups, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return list(dict.fromkeys(ipaddress.ip_address(info[4][0]) for info in infos))


class AddressGuard:
    """Judges URLs and addresses. `allow`: networks that are permitted beside the public ones, or True for anything."""

    def __init__(self, allow: bool | tuple[Network, ...] = False, lookup: Lookup = system_lookup) -> None:
        self._allow_all = allow is True
        self._networks = () if isinstance(allow, bool) else allow
        self._lookup = lookup

    def permits(self, ip: Address) -> bool:
        """Whether this address may be connected to."""
        if self._allow_all or is_public(ip):
            return True
        inner = _unwrapped(ip) if isinstance(ip, ipaddress.IPv6Address) else None
        return any(ip in network or (inner is not None and inner in network) for network in self._networks)

    def check_url(self, url: str) -> CheckedUrl:
        """Judge the spelling of a URL, and its host if that is an address. Asks no name server.

        Raises `RefusedAddress`.
        """
        checked = parse_url(url)
        if checked.address is not None and not self.permits(checked.address):
            raise _not_public()
        return checked

    async def check_resolved(self, url: str, *, must_resolve: bool = False) -> CheckedUrl:
        """Judge a URL and all that its host resolves to, as at registration. Raises `RefusedAddress`.

        A name without an address passes, unless it `must_resolve` (`UnresolvedName`): whether an application may register
        its tools should not hang on a name server, or on which of two services was started first. This is a courtesy to
        whoever registers; what protects is the check of each connection.
        """
        checked = self.check_url(url)
        if checked.address is not None or self._allow_all:
            return checked
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                await self.addresses(checked.host, checked.port)
        except OSError:  # TimeoutError is one
            if must_resolve:
                raise UnresolvedName(f"the host name {checked.host} does not resolve to an address") from None
        return checked

    async def addresses(self, host: str, port: int) -> Sequence[Address]:
        """Resolve a name once. Raises `RefusedAddress` if any of its addresses is refused, OSError if it has none."""
        try:
            found = await self._lookup(host, port)
        except UnicodeError:
            raise OSError("the host name cannot be looked up") from None
        if not found:
            raise OSError("the host name has no address")
        if not all(self.permits(ip) for ip in found):
            raise _not_public()
        return found


def _not_public() -> RefusedAddress:
    return RefusedAddress(
        "the host is, or resolves to, an address that is not public (an operator can permit networks with"
        " RONDO_ALLOW_PRIVATE_WEBHOOKS)"
    )


def parse_url(url: str) -> CheckedUrl:
    """Read a URL strictly, so that no other reader of it can see another host. Raises `RefusedAddress`."""
    split = _split(url)
    host_text, port = _host_and_port(split)
    host, address = _read_host(host_text)
    shown = f"[{host}]" if isinstance(address, ipaddress.IPv6Address) else host
    default = 443 if split.scheme == "https" else 80
    suffix = "" if port in (None, default) else f":{port}"
    rest = quote((split.path or "/") + (f"?{split.query}" if split.query else ""), safe=_SENT_AS_IT_IS)
    return CheckedUrl(f"{split.scheme}://{shown}{suffix}{rest}", host, port or default, address)


def _split(url: str) -> SplitResult:
    if len(url) > MAX_URL_CHARS:
        raise RefusedAddress(f"the URL is longer than {MAX_URL_CHARS} characters")
    if _CONTROLS.search(url) or any(unicodedata.category(char)[0] in "CZ" for char in url if not char.isascii()):
        raise RefusedAddress("the URL holds spaces, control characters or backslashes")
    try:
        split = urlsplit(url)
    except ValueError:
        raise RefusedAddress("the URL is malformed") from None
    if split.scheme not in ("http", "https"):
        raise RefusedAddress("the URL must start with http:// or https://")
    if "@" in split.netloc:
        raise RefusedAddress("the URL holds credentials; send them in headers instead")
    if "#" in url:
        raise RefusedAddress("the URL has a fragment (#), which is never sent")
    return split


def _host_and_port(split: SplitResult) -> tuple[str, int | None]:
    netloc = split.netloc
    if netloc.startswith("["):
        host, bracket, rest = netloc.partition("]")
        host += bracket
        if rest and not rest.startswith(":"):
            raise RefusedAddress("the URL is malformed")
        port = rest[1:]
    else:
        host, _, port = netloc.partition(":")
    if not host:
        raise RefusedAddress("the URL has no host")
    if not port:
        return host, None
    if not _PORT.fullmatch(port) or not 0 < int(port) <= 65535:
        raise RefusedAddress("the port of the URL must be a number from 1 to 65535")
    return host, int(port)


def _read_host(text: str) -> tuple[str, Address | None]:
    """The host in one spelling, and the address it is, read as the operating system's resolver would read it."""
    if text.startswith("["):
        try:
            address = ipaddress.IPv6Address(text[1:-1])
        except ValueError:
            raise RefusedAddress("the host of the URL is not a valid IPv6 address") from None
        if address.scope_id is not None:
            raise RefusedAddress("the host of the URL names a network interface")
        return str(address), address
    host = _ascii_host(text)
    bare = host.removesuffix(".")
    numeric = _NUMERIC_LABEL.fullmatch(bare.rpartition(".")[2])
    if numeric:
        # 127.1, 0x7f000001, 2130706433 and 0177.0.0.1 are all addresses to the resolver.
        try:
            v4 = ipaddress.IPv4Address(socket.inet_aton(bare))
        except OSError:
            raise RefusedAddress("the host of the URL is not a valid IPv4 address") from None
        return str(v4), v4
    if len(bare) > 253 or not all(_LABEL.fullmatch(label) for label in bare.split(".")):
        raise RefusedAddress("the host of the URL is not a valid name")
    return host, None


def _ascii_host(text: str) -> str:
    """Full-width digits and dots become plain ones, letters of other scripts their `xn--` form."""
    host = unicodedata.normalize("NFKC", text.translate(_DOTS)).translate(_DOTS).lower()
    if host.isascii():
        return host
    try:
        return httpx.URL(f"http://{host}/").raw_host.decode("ascii").lower()
    except (httpx.InvalidURL, UnicodeError):
        raise RefusedAddress("the host of the URL is not a valid name") from None
