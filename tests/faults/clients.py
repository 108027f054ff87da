"""Callers who do not give up: every request is repeated until it is answered, every stream is taken up where it was cut."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from random import Random
from typing import Any

import httpx

from tests.faults.processes import SERVICE_KEY

ENDS = frozenset({"run.completed", "run.incomplete", "run.failed", "run.cancelled"})
DELTAS = frozenset({"message.delta", "reasoning.delta"})
_AWAY = frozenset({500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Seen:
    """One event as a client got it, and when by the monotonic clock."""

    id: int | None
    type: str
    data: dict[str, Any]
    at: float

    def __repr__(self) -> str:
        return f"{self.id}:{self.type}"


class Refused(Exception):
    """An answer that no repetition mends."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text[:300]}")
        self.status = status
        try:
            self.code = json.loads(text).get("code")
        except ValueError:
            self.code = None


class Client:
    """Asks one of the replicas at random, another one when that did not answer. `unforeseen` collects every 500."""

    def __init__(self, urls: list[str], seed: int) -> None:
        self.repeated = 0
        self.unforeseen: list[str] = []
        self._random = Random(f"{seed}/client")
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=50)
        headers = {"Authorization": f"Bearer {SERVICE_KEY}"}
        self._https = [
            httpx.AsyncClient(base_url=url, timeout=30, limits=limits, headers=headers, trust_env=False) for url in urls
        ]

    async def close(self) -> None:
        for http in self._https:
            await http.aclose()

    def any(self) -> httpx.AsyncClient:
        return self._random.choice(self._https)

    async def breathe(self) -> None:
        await asyncio.sleep(self._random.uniform(0.05, 0.25))

    async def ask(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        """The answer's JSON (None for 204). Raises Refused for a 4xx that stays."""
        headers = {} if key is None else {"Idempotency-Key": key}
        while True:
            try:
                response = await self.any().request(method, path, json=body, headers=headers)
            except httpx.TransportError:
                self.repeated += 1
            else:
                if response.is_success:
                    return response.json() if response.content else None
                refused = Refused(response.status_code, response.text)
                if not self.may_pass(refused):
                    raise refused
            await self.breathe()

    def may_pass(self, refused: Refused) -> bool:
        """Whether to ask again."""
        if refused.status == 500:
            self.unforeseen.append(str(refused))
        self.repeated += 1
        return refused.status in _AWAY or refused.code == "idempotency_in_progress"


async def events_of(response: httpx.Response) -> AsyncIterator[Seen]:
    """The whole frames of a stream; what is left of a cut one is dropped."""
    rest = b""
    async for chunk in response.aiter_raw():
        *frames, rest = (rest + chunk).split(b"\n\n")
        for frame in frames:
            if frame and not frame.startswith((b":", b"retry:")):
                lines = dict(line.split(b": ", 1) for line in frame.split(b"\n"))
                number = int(lines[b"id"]) if b"id" in lines else None
                yield Seen(number, lines[b"event"].decode(), json.loads(lines[b"data"]), time.monotonic())


class Follower:
    """Collects a run's events over all connections, and sometimes hangs up by itself."""

    def __init__(self, client: Client, random: Random) -> None:
        self.client = client
        self.seen: list[Seen] = []
        self.connections = 0
        self.refusals: list[str] = []
        self.changed = asyncio.Event()
        self._random = random

    @property
    def has_ended(self) -> bool:
        return bool(self.seen) and self.seen[-1].type in ENDS

    @property
    def last_id(self) -> int | None:
        return next((event.id for event in reversed(self.seen) if event.id is not None), None)

    async def follow(self, run_id: str) -> None:
        """Until the end of the run."""
        while not self.has_ended:
            headers = {} if self.last_id is None else {"Last-Event-ID": str(self.last_id)}
            path = f"/v1/runs/{run_id}/events"
            try:
                async with self.client.any().stream("GET", path, headers=headers) as response:
                    await self._read(response)
            except httpx.TransportError:
                pass
            if not self.has_ended:
                await self.client.breathe()

    async def _read(self, response: httpx.Response) -> None:
        if response.status_code in _AWAY:
            return
        if response.status_code != 200:
            self.refusals.append(f"after {self.last_id}: {response.status_code} {(await response.aread())[:200]!r}")
            await asyncio.sleep(0.5)
            return
        await self.take(response)

    async def take(self, response: httpx.Response) -> None:
        """The events of one connection, up to where it is cut or this client has had enough."""
        self.connections += 1
        patience = self._random.randint(1, 30) if self._random.random() < 0.3 else None
        async for event in events_of(response):
            self.seen.append(event)
            self.changed.set()
            if patience is not None and event.type not in ENDS:
                patience -= 1
                # not right after it was told to forget a message: what comes next is that message, and has no id before it
                if patience <= 0 and event.id is not None:
                    return
