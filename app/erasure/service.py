"""Erasing all that is kept within some axes, and exporting it."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import orjson

from app.erasure.stores import GIVEN, Axes, Store, axis_values, stores, within, within_tenant
from app.infra.crypto import Crypto, DecryptionError
from app.infra.database import Connection, Pool
from app.infra.errors import NotFound
from app.loop.messages import ACTIVE_STATUSES
from app.redaction.opened import Vaults
from app.redaction.showing import restored_bytes
from app.runs.service import RunService

_ROWS_AT_ONCE = 200
_STOP_ROUNDS = 20
_ERASING_SECONDS = 600.0
"""For one store: longer than other statements may take, since all of a tenant goes at once."""
_GUILLEMET = "«".encode()
_IDS = re.compile(r"\b[a-z]{3,4}_[0-9a-f]{32}\b")
_NO_IDS: list[list[str]] = [[], [], [], []]
_DRAWN_FROM_THEM_ALONE = """
EXISTS (SELECT FROM memory_sources AS s WHERE s.memory_id = m.id
               AND s.session_id = ANY((SELECT sessions FROM given)::text[]))
AND NOT EXISTS (SELECT FROM memory_sources AS s WHERE s.memory_id = m.id
                   AND s.session_id <> ALL((SELECT sessions FROM given)::text[]))
"""
"""A note of another scope goes too when all lines it rests on go; one that people wrote has no such lines."""


class Within:
    """What is within some axes of a workspace: the ids of its runs, sessions, memories and agents."""

    def __init__(self, workspace_id: str, axes: Axes) -> None:
        self.workspace_id, self.axes = workspace_id, axes
        self.runs, self.sessions, self.memories, self.agents = _NO_IDS

    @property
    def places(self) -> list[Any]:
        return [self.workspace_id, self.runs, self.sessions, self.memories, self.agents, *axis_values(self.axes)]

    @property
    def ids(self) -> set[str]:
        return {*self.runs, *self.sessions, *self.memories, *self.agents}

    async def read(self, db: Connection | Pool, *, lock: bool = False) -> "Within":
        """Runs before sessions, as a run's own statements lock them."""
        scoped, tail = within(self.axes), " ORDER BY id FOR UPDATE" if lock else ""
        in_session = f"session_id IN (SELECT id FROM sessions WHERE {scoped})"
        tenants = f"workspace_id = (SELECT workspace FROM given) AND {within_tenant(self.axes)}"
        of_agent = f"agent_id IN (SELECT id FROM agents WHERE {tenants})"
        self.runs = await self._ids(db, f"runs AS m WHERE ({scoped}) OR {in_session} OR {of_agent}", tail)
        self.sessions = await self._ids(db, f"sessions AS m WHERE {scoped}", tail)
        self.memories = await self._ids(db, f"memories AS m WHERE ({scoped}) OR ({_DRAWN_FROM_THEM_ALONE})", tail)
        self.agents = await self._ids(db, f"agents AS m WHERE {tenants}", tail)
        return self

    async def _ids(self, db: Connection | Pool, rest: str, tail: str) -> list[str]:
        return [row["id"] for row in await db.fetch(f"{GIVEN} SELECT m.id FROM {rest}{tail}", *self.places)]


async def erase(pool: Pool, runs: RunService, crypto: Crypto, workspace_id: str, axes: Axes) -> dict[str, int]:
    """Erase everything within the axes; how many rows of each store went. Runs that are active are stopped first."""
    await _stop(pool, runs, workspace_id, axes)
    deleted: dict[str, int] = {}
    async with pool.acquire() as connection, connection.transaction():
        found = await Within(workspace_id, axes).read(connection, lock=True)
        deleted["idempotency_keys"] = await _forget_answers(connection, crypto, found)
        for store in stores(axes):
            erasing = f"{GIVEN} DELETE FROM {store.table} WHERE {store.rows}"
            status = await connection.execute(erasing, *found.places, timeout=_ERASING_SECONDS)
            deleted[store.table] = int(status.rpartition(" ")[2])
    await runs.forget(found.runs)
    deleted["event_logs"] = len(found.runs)
    return deleted


async def _stop(pool: Pool, runs: RunService, workspace_id: str, axes: Axes) -> None:
    """End the active runs. What starts meanwhile or does not end is erased under its owner, which then loses its claim."""
    for _ in range(_STOP_ROUNDS):
        found = await Within(workspace_id, axes).read(pool)
        query = "SELECT * FROM runs WHERE id = ANY($1) AND status = ANY($2) AND cancel_requested_at IS NULL"
        active = await pool.fetch(query, found.runs, list(ACTIVE_STATUSES))
        if not active:
            return
        await asyncio.gather(*(_cancel(runs, row) for row in active))


async def _cancel(runs: RunService, row: asyncpg.Record) -> None:
    try:
        await runs.cancel(row)
    except NotFound:
        return  # somebody else has erased it


async def _forget_answers(connection: Connection, crypto: Crypto, found: Within) -> int:
    """Forget what repeated calls would be answered: of runs that go, and what names something that goes."""
    rows = await connection.fetch("SELECT * FROM idempotency_keys WHERE workspace_id = $1 FOR UPDATE", found.workspace_id)
    going = found.ids
    gone = [row for row in rows if row["run_id"] in going or _names(crypto, row, going, found.axes)]
    for row in gone:
        await connection.execute(
            "DELETE FROM idempotency_keys WHERE workspace_id = $1 AND scope = $2 AND key = $3",
            row["workspace_id"], row["scope"], row["key"],
        )  # fmt: skip
    return len(gone)


def _names(crypto: Crypto, row: asyncpg.Record, going: set[str], axes: Axes) -> bool:
    if not going.isdisjoint(_IDS.findall(row["scope"])):
        return True
    if row["answer"] is None:
        return False
    place = ":".join((row["workspace_id"], row["scope"], row["key"]))
    try:
        answer = crypto.open(row["answer"], bound_to="idempotency:" + place)
    except DecryptionError:
        return True  # no key opens it, so that it can be no answer; what it holds is not known
    return not going.isdisjoint(_IDS.findall(answer.decode())) or _is_within(orjson.loads(answer), axes)


def _is_within(answer: Any, axes: Axes) -> bool:
    """Whether an answer shows a thing of that scope, also of one that is gone already."""
    if not isinstance(answer, dict) or "tenant" not in answer:
        return False
    return all(answer.get(name) == (None if wanted is None else wanted.as_dict()) for name, wanted in axes.items())


async def export(pool: Pool, vaults: Vaults, workspace_id: str, axes: Axes) -> AsyncIterator[bytes]:
    """`{"data": {STORE: [rows]}}` of all that is kept, a page of rows at a time; holds nothing between two pages. Values
    stand in the place of tokens."""
    found = await Within(workspace_id, axes).read(pool)
    start = b'{"data":{'
    for store in reversed(stores(axes)):
        yield start + orjson.dumps(store.table) + b":["
        async for part in _rows(pool, vaults, store, found):
            yield part
        start = b"],"
    yield b"]}}"


async def _rows(pool: Pool, vaults: Vaults, store: Store, found: Within) -> AsyncIterator[bytes]:
    keys, hidden, comma = ", ".join(store.key), list(store.hidden), b""
    last: list[Any] = []
    while True:
        after = f"AND ({keys}) > ({', '.join(f'${12 + number}' for number in range(len(last)))})" if last else ""
        rows = await pool.fetch(
            f"{GIVEN} SELECT {keys}, (to_jsonb(t) - ${12 + len(last)}::text[])::text AS shown FROM {store.table} AS t"
            f" WHERE {store.rows} {after} ORDER BY {keys} LIMIT {_ROWS_AT_ONCE}",
            *found.places, *last, hidden,
        )  # fmt: skip
        if not rows:
            return
        yield comma + b",".join(await _restored(pool, vaults, [row["shown"].encode() for row in rows]))
        comma, last = b",", [rows[-1][name] for name in store.key]


async def _restored(pool: Pool, vaults: Vaults, rows: list[bytes]) -> list[bytes]:
    """The rows with values: each that holds what may be a token by the vault of its run or session."""
    marked = {at: orjson.loads(row) for at, row in enumerate(rows) if _GUILLEMET in row}
    if not marked:
        return rows
    run_ids = [row["run_id"] for row in marked.values() if row.get("run_id")]
    of_run = dict(await pool.fetch("SELECT id, vault FROM runs WHERE id = ANY($1)", run_ids))
    owners = {at: row.get("vault") or of_run.get(row.get("run_id")) or row.get("session_id") for at, row in marked.items()}
    read = await vaults.read(owner for owner in owners.values() if owner is not None)
    known = {at: read[owner] for at, owner in owners.items() if owner in read}
    return [restored_bytes(row, known[at]) if at in known else row for at, row in enumerate(rows)]
