"""Subscriptions and deliveries in the database. Secrets and headers are opened here and nowhere else."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg
import orjson
from sqlmodel import col, select
from sqlmodel.ext.asyncio.session import AsyncSession

from app.infra import clock, ids
from app.infra.crypto import Crypto
from app.infra.database import Connection, Pool
from app.infra.errors import NotFound
from app.outbound.signing import new_secret
from app.subscriptions.models import DeliveryStatus, Subscription, SubscriptionCreate, SubscriptionPatch
from app.web import Page

OLD_SECRET_LASTS = timedelta(hours=24)

# $1 claim, $2 lease seconds, $3 how many at once for one subscription, $4 how many subscriptions. Of a run to a subscription
# the oldest goes first, and what comes after it waits.
_CLAIM = """
WITH taken AS (
  SELECT due.id FROM (
    SELECT DISTINCT s.id, s.active AND s.paused_at IS NULL AS goes FROM deliveries AS d
      JOIN subscriptions AS s ON s.id = d.subscription_id
     WHERE d.status = 'pending' AND d.next_attempt_at <= now() AND ((s.active AND s.paused_at IS NULL) OR d.by_hand)
     LIMIT $4) AS s
  CROSS JOIN LATERAL (
    SELECT d.id FROM deliveries AS d
     WHERE d.subscription_id = s.id AND d.status = 'pending' AND d.next_attempt_at <= now()
       AND (d.claimed_until IS NULL OR d.claimed_until < now()) AND (s.goes OR d.by_hand)
       AND NOT EXISTS (SELECT 1 FROM deliveries AS earlier
            WHERE earlier.run_id = d.run_id AND earlier.subscription_id = d.subscription_id
              AND earlier.place < d.place AND earlier.status = 'pending')
     ORDER BY d.place
     LIMIT greatest(0, $3 - (SELECT count(*) FROM deliveries AS open
            WHERE open.subscription_id = s.id AND open.status = 'pending' AND open.claimed_until > now()))
       FOR UPDATE SKIP LOCKED) AS due)
UPDATE deliveries SET claim = $1, claimed_until = now() + make_interval(secs => $2), attempts = attempts + 1
  FROM taken, subscriptions AS s
 WHERE deliveries.id = taken.id AND s.id = deliveries.subscription_id
RETURNING deliveries.*, s.url, s.headers, s.secret, s.old_secret, s.old_secret_until,
          extract(epoch FROM now() - deliveries.due_at)::float8 AS age_seconds
"""

# $1 delivery, $2 claim: a delivery that came is good news of its subscription, also of a paused one
_DELIVERED = """
WITH done AS (
  UPDATE deliveries SET status = 'delivered', settled_at = now(), claim = NULL, claimed_until = NULL, by_hand = false
   WHERE id = $1 AND claim = $2 RETURNING subscription_id, run_id, place),
mended AS (
  UPDATE subscriptions SET failures = 0, failing_since = NULL, last_error = NULL, paused_at = NULL, paused_reason = NULL
    FROM done WHERE subscriptions.id = done.subscription_id
     AND (failures > 0 OR paused_at IS NOT NULL OR failing_since IS NOT NULL))
SELECT EXISTS (SELECT 1 FROM deliveries AS d JOIN done USING (subscription_id, run_id)
                WHERE d.status = 'pending' AND d.place > done.place) FROM done
"""

# $1 delivery, $2 claim, $3 seconds until the next try or NULL for none, $4 status, $5 error, $6 failures and $7 seconds
# after which the subscription is paused (0 failures: never), $8 why it is paused at once, or NULL
_FAILED = """
WITH failed AS (
  UPDATE deliveries SET status = CASE WHEN $3::float8 IS NULL THEN 'exhausted' ELSE 'pending' END,
         settled_at = CASE WHEN $3::float8 IS NULL THEN now() END,
         next_attempt_at = now() + make_interval(secs => coalesce($3, 0)), last_status = $4, last_error = $5,
         claim = NULL, claimed_until = NULL, by_hand = false
   WHERE id = $1 AND claim = $2 RETURNING subscription_id)
UPDATE subscriptions SET failures = failures + 1, failing_since = coalesce(failing_since, now()), last_error = $5,
       paused_at = CASE WHEN paused_at IS NOT NULL THEN paused_at
                        WHEN $8::text IS NOT NULL THEN now()
                        WHEN $6::int > 0 AND failures + 1 >= $6 AND failing_since < now() - make_interval(secs => $7)
                        THEN now() END,
       paused_reason = CASE WHEN paused_at IS NOT NULL THEN paused_reason
                            WHEN $8::text IS NOT NULL THEN $8
                            WHEN $6::int > 0 AND failures + 1 >= $6 AND failing_since < now() - make_interval(secs => $7)
                            THEN 'failing' END
  FROM failed WHERE subscriptions.id = failed.subscription_id
RETURNING paused_reason, paused_at = now() AS has_paused
"""

# $1 seconds after which a delivery is given up, $2 how many: those of paused subscriptions, which nobody tries
_EXPIRE = """
UPDATE deliveries SET status = 'exhausted', settled_at = now(),
       last_error = coalesce(last_error, 'the subscription was paused')
 WHERE id IN (SELECT d.id FROM deliveries AS d JOIN subscriptions AS s ON s.id = d.subscription_id
               WHERE d.status = 'pending' AND d.due_at < now() - make_interval(secs => $1)
                 AND NOT (s.active AND s.paused_at IS NULL) AND NOT d.by_hand
               LIMIT $2 FOR UPDATE OF d SKIP LOCKED)
"""

_REDELIVER = """
UPDATE deliveries SET status = 'pending', by_hand = true, next_attempt_at = now(), due_at = now(), settled_at = NULL
 WHERE id = $1 AND subscription_id = $2 RETURNING *
"""


@dataclass(frozen=True, slots=True)
class Pause:
    """After so many failed tries in a row over at least so many seconds a subscription is paused; 0 failures: never."""

    failures: int
    seconds: float


async def create(
    db: AsyncSession, crypto: Crypto, workspace_id: str, wanted: SubscriptionCreate
) -> tuple[Subscription, str]:
    """With its secret, which is shown this once."""
    now, secret, subscription_id = clock.now(), new_secret(), ids.new(ids.SUBSCRIPTION)
    row = Subscription(
        id=subscription_id, workspace_id=workspace_id, url=wanted.url, events=_topics(wanted.events), active=wanted.active,
        headers=_seal_headers(crypto, subscription_id, wanted.headers),
        secret=_seal(crypto, subscription_id, secret.encode()), created_at=now, updated_at=now,
    )  # fmt: skip
    db.add(row)
    return row, secret


async def get(db: AsyncSession, workspace_id: str, subscription_id: str, *, lock: bool = False) -> Subscription:
    """Raises NotFound."""
    row = await db.get(Subscription, subscription_id, with_for_update=lock or None)
    if row is None or row.workspace_id != workspace_id:
        raise NotFound()
    return row


async def list_subscriptions(db: AsyncSession, workspace_id: str, page: Page) -> list[Subscription]:
    """Newest first."""
    query = select(Subscription).where(Subscription.workspace_id == workspace_id)
    if page.cursor is not None:
        query = query.where(Subscription.id < page.cursor)
    return list((await db.exec(query.order_by(col(Subscription.id).desc()).limit(page.limit + 1))).all())


def change(crypto: Crypto, row: Subscription, wanted: SubscriptionPatch) -> None:
    """Set what is named; made active, it is no longer paused."""
    named = wanted.model_fields_set
    if wanted.url is not None:
        row.url = wanted.url
    if wanted.events is not None:
        row.events = _topics(wanted.events)
    if "headers" in named:
        row.headers = _seal_headers(crypto, row.id, wanted.headers)
    if wanted.active is not None:
        row.active = wanted.active
        row.paused_at = row.paused_reason = row.failing_since = None
        row.failures = 0
    row.updated_at = clock.now()


def rotate_secret(crypto: Crypto, row: Subscription) -> str:
    """A new secret; the old one goes on signing beside it for a day."""
    secret = new_secret()
    row.old_secret, row.old_secret_until = row.secret, clock.now() + OLD_SECRET_LASTS
    row.secret = _seal(crypto, row.id, secret.encode())
    row.updated_at = clock.now()
    return secret


def open_headers(crypto: Crypto, subscription_id: str, sealed: bytes | None) -> dict[str, str]:
    if sealed is None:
        return {}
    headers: dict[str, str] = orjson.loads(crypto.open(sealed, bound_to=_place(subscription_id)))
    return headers


def open_secrets(crypto: Crypto, row: Any) -> tuple[str, ...]:
    """The secrets that sign a claimed delivery now: the newest first, and the one before while it lasts."""
    place = _place(row["subscription_id"])
    secrets = [crypto.open(row["secret"], bound_to=place).decode()]
    if row["old_secret"] is not None and row["old_secret_until"] > clock.now():
        secrets.append(crypto.open(row["old_secret"], bound_to=place).decode())
    return tuple(secrets)


async def claim(pool: Pool, token: str, lease_seconds: float, at_once: int, subscriptions: int) -> list[asyncpg.Record]:
    """Take deliveries that are due, of each subscription a few, with what is needed to send them."""
    rows: list[asyncpg.Record] = await pool.fetch(_CLAIM, token, lease_seconds, at_once, subscriptions)
    return rows


async def delivered(pool: Pool, delivery_id: str, token: str) -> bool:
    """It has come; True when the same subscription waits for more of the same run."""
    return bool(await pool.fetchval(_DELIVERED, delivery_id, token))


async def failed(
    pool: Pool,
    delivery_id: str,
    token: str,
    again_seconds: float | None,
    status: int | None,
    error: str,
    pause: Pause,
    paused: str | None = None,
) -> str | None:
    """A try has failed; why the subscription is paused, if this has paused it."""  # fmt: skip
    row = await pool.fetchrow(
        _FAILED, delivery_id, token, again_seconds, status, error, pause.failures, pause.seconds, paused
    )
    return row["paused_reason"] if row is not None and row["has_paused"] else None


async def expire(pool: Pool, seconds: float, limit: int) -> None:
    """Give up what is too old and belongs to a subscription that nothing is sent to."""
    await pool.execute(_EXPIRE, seconds, limit)


async def forget(pool: Pool, days: int) -> None:
    """Deliveries that were settled so long ago."""
    await pool.execute("DELETE FROM deliveries WHERE settled_at < now() - make_interval(days => $1)", days)


async def list_deliveries(
    pool: Pool, subscription_id: str, page: Page, status: DeliveryStatus | None
) -> list[asyncpg.Record]:
    """Newest first."""
    rows: list[asyncpg.Record] = await pool.fetch(
        "SELECT * FROM deliveries WHERE subscription_id = $1 AND ($2::text IS NULL OR status = $2) AND place < $3"
        " ORDER BY place DESC LIMIT $4",
        subscription_id, status, int(page.cursor) if page.cursor is not None else 2**62, page.limit + 1,
    )  # fmt: skip
    return rows


async def redeliver(db: Connection | Pool, subscription_id: str, delivery_id: str) -> asyncpg.Record:
    """Have it sent once more, also to a paused subscription. Raises NotFound."""
    row = await db.fetchrow(_REDELIVER, delivery_id, subscription_id)
    if row is None:
        raise NotFound()
    return row


def _topics(topics: Sequence[str]) -> list[str]:
    return [str(topic) for topic in dict.fromkeys(topics)]


def _seal_headers(crypto: Crypto, subscription_id: str, headers: dict[str, str] | None) -> bytes | None:
    return _seal(crypto, subscription_id, orjson.dumps(headers)) if headers else None


def _seal(crypto: Crypto, subscription_id: str, plain: bytes) -> bytes:
    return crypto.seal(plain, bound_to=_place(subscription_id))


def _place(subscription_id: str) -> str:
    return f"subscription:{subscription_id}"
