"""Sends what stands in the outbox: at least once, of one run in order, again and again for a day.

Every process sends, so that a service without a worker tells its events too. Whoever claims a delivery holds it by a lease;
no transaction is open while it is sent. A subscription has a few deliveries under way at once in the whole service, so
that a slow endpoint holds up nobody else.
"""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from time import time
from typing import Any

from app.infra.crypto import Crypto
from app.infra.database import Pool
from app.infra.reach import is_out_of_reach
from app.infra.telemetry import DELIVERIES, log
from app.outbound.sender import USER_AGENT, Answer, Sender, SendFailure
from app.outbound.signing import sign
from app.subscriptions import repository
from app.subscriptions.repository import Pause

BodyOf = Callable[[Mapping[str, Any]], Awaitable[bytes | None]]
"""The body of a delivery, the same at every try; None where what it tells is gone."""

LASTS_SECONDS = 86_400.0
PAUSES_SECONDS = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0)
"""Before the next tries; the last one again and again."""
TIMEOUT_SECONDS = 15.0
_LEASE_SECONDS = 60.0
_PER_SUBSCRIPTION, _SUBSCRIPTIONS = 4, 50
_EXPIRED_AT_ONCE = 1000
_GONE = 410


@dataclass(frozen=True, slots=True)
class _Failure:
    status: int | None
    error: str
    retry_after_seconds: float = 0.0
    paused: str | None = None


class Deliverer:
    """One per process."""

    def __init__(self, pool: Pool, crypto: Crypto, sender: Sender, body_of: BodyOf, pause: Pause) -> None:
        self._pool, self._crypto, self._sender, self._body_of = pool, crypto, sender, body_of
        self._pause = pause
        self._wanted = asyncio.Event()
        self._under_way: set[asyncio.Task[None]] = set()

    async def sweep(self) -> None:
        """Send what is due, and give up what is too old and cannot be sent."""
        await repository.expire(self._pool, LASTS_SECONDS, _EXPIRED_AT_ONCE)
        await self.deliver()

    async def deliver(self) -> None:
        """Claim what is due and send it, each in a task of its own; what comes free by that is claimed by it in turn."""
        token = secrets.token_hex(16)
        rows = await repository.claim(self._pool, token, _LEASE_SECONDS, _PER_SUBSCRIPTION, _SUBSCRIPTIONS)
        for row in rows:
            task = asyncio.create_task(self._guarded(row), name=row["id"])
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def stop(self) -> None:
        """Leave what is under way: its lease runs out, and whoever can sends it again."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _guarded(self, row: Mapping[str, Any]) -> None:
        try:
            if await self._send(row):
                await self.deliver()
        except Exception as error:
            if is_out_of_reach(error):
                log.warning("delivery_unknown", delivery_id=row["id"], error=type(error).__name__)
            else:
                log.exception("delivery_broke", delivery_id=row["id"])

    async def _send(self, row: Mapping[str, Any]) -> bool:
        """One try; True when there may be more to send now."""
        body = await self._body_of(row)
        if body is None:
            return False  # the run is erased, and with it this row
        failure = await self._tried(row, body)
        if failure is None:
            DELIVERIES.labels("delivered").inc()
            return await repository.delivered(self._pool, row["id"], row["claim"])
        again = again_seconds(row["attempts"], row["age_seconds"], failure.retry_after_seconds)
        DELIVERIES.labels("failed" if again is not None else "exhausted").inc()
        log.info(
            "delivery_failed", delivery_id=row["id"], subscription_id=row["subscription_id"], attempt=row["attempts"],
            status=failure.status, cause=failure.error, again_seconds=again,
        )  # fmt: skip
        paused = await repository.failed(
            self._pool, row["id"], row["claim"], again, failure.status, failure.error, self._pause, failure.paused
        )
        if paused is not None:
            log.warning("subscription_paused", subscription_id=row["subscription_id"], reason=paused)
        return again is None

    async def _tried(self, row: Mapping[str, Any], body: bytes) -> _Failure | None:
        headers = repository.open_headers(self._crypto, row["subscription_id"], row["headers"])
        timestamp = int(time())
        signature = sign(repository.open_secrets(self._crypto, row), row["id"], timestamp, body)
        own = {
            "content-type": "application/json", "webhook-id": row["id"], "webhook-timestamp": str(timestamp),
            "webhook-signature": signature, "rondo-attempt": str(row["attempts"]), "rondo-run": row["run_id"],
            "user-agent": USER_AGENT,
        }  # fmt: skip
        named = {name.lower(): value for name, value in headers.items()}
        try:
            answer = await self._sender.post(row["url"], body, {**named, **own}, TIMEOUT_SECONDS)
        except SendFailure as failure:
            return _Failure(failure.status, str(failure))
        return None if 200 <= answer.status < 300 else _refusal(answer)


def _refusal(answer: Answer) -> _Failure:
    asked = answer.headers.get("retry-after", "")
    seconds = float(asked) if asked.isascii() and asked.isdigit() else 0.0
    paused = "gone" if answer.status == _GONE else None
    return _Failure(answer.status, f"answered {answer.status}", min(seconds, PAUSES_SECONDS[-1]), paused)


def again_seconds(attempts: int, age_seconds: float, asked_seconds: float = 0.0) -> float | None:
    """How long to wait after the failure of a try (counted from 1), with jitter; None when its day would be over."""
    pause = PAUSES_SECONDS[min(attempts, len(PAUSES_SECONDS)) - 1]
    wait = max(asked_seconds, pause * random.uniform(0.8, 1.2))
    return wait if age_seconds + wait <= LASTS_SECONDS else None
