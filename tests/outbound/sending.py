"""What the tests of the sender share: names that resolve as told, senders that may call this machine, failures."""

import ipaddress
import ssl
from collections.abc import Sequence
from functools import lru_cache

import httpx
import pytest

from app.outbound.address_guard import Address, AddressGuard
from app.outbound.sender import Sender, SendFailure

LOCAL = (ipaddress.ip_network("127.0.0.0/8"),)


class FakeNames:
    """Gives a name's answers one after the other, the last one again and again."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, host: str, port: int) -> list[Address]:
        self.asked += 1
        return [ipaddress.ip_address(text) for text in self.answers[min(self.asked, len(self.answers)) - 1]]


@lru_cache
def usual_tls() -> ssl.SSLContext:
    """Made once: loading the authorities takes longer than a test."""
    return httpx.create_ssl_context()


def sender(lookup: FakeNames | None = None, *, ssl_context: ssl.SSLContext | None = None) -> Sender:
    guard = AddressGuard(LOCAL, lookup) if lookup else AddressGuard(LOCAL)
    return Sender(guard, ssl_context=ssl_context or usual_tls())


async def failure_of(sending: Sender, url: str, seconds: float = 5, *, fresh: bool = False) -> SendFailure:
    """The failure of a POST, which shows nothing of what was sent."""
    with pytest.raises(SendFailure) as caught:
        await sending.post(url, b"{}", {"x-secret": "very-secret"}, seconds, fresh=fresh)
    assert "very-secret" not in f"{caught.value}{caught.value.__cause__}"
    return caught.value
