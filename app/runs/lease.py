"""Who owns a run. A claim is a random token that expires by the database's clock; every write of the run names it."""

import secrets
from collections.abc import Mapping
from typing import Any

import asyncpg

from app.infra.database import Pool
from app.runs import statements


def new_claim() -> str:
    return secrets.token_hex(16)


async def claim(pool: Pool, run_id: str, lease_seconds: float) -> asyncpg.Record | None:
    """Take a run that nobody works on; None when somebody does, or when it is not its turn."""
    token = new_claim()
    try:
        return await pool.fetchrow(statements.CLAIM, run_id, token, lease_seconds)
    except asyncpg.UniqueViolationError:
        return None  # another run of the session was started at this very moment


async def claim_to_cancel(pool: Pool, run_id: str) -> asyncpg.Record | None:
    """Take a run in order to end it; None when a living process owns it or it has ended."""
    return await pool.fetchrow(statements.CLAIM_TO_CANCEL, run_id, new_claim())


async def abandoned(pool: Pool, limit: int) -> list[str]:
    """Runs that wait for an owner: queued ones whose turn it is, and those whose lease ran out."""
    return [row["id"] for row in await pool.fetch(statements.ABANDONED, limit)]


async def renew(pool: Pool, claims: Mapping[str, str], lease_seconds: float) -> set[str]:
    """Renew the leases of these runs (claims by run id). Returns those that another process owns or that are gone.

    A run that has just ended or begun to wait is neither: its owner is about to notice.
    """
    rows = await pool.fetch(statements.RENEW, list(claims), list(claims.values()), lease_seconds)
    missing = claims.keys() - {row["id"] for row in rows}
    if not missing:
        return set()
    known = {row["id"]: row for row in await pool.fetch(statements.OWNERS, list(missing))}
    return {
        run_id
        for run_id in missing
        if run_id not in known or (known[run_id]["status"] == "running" and known[run_id]["claim"] != claims[run_id])
    }


async def let_go(pool: Pool, run_id: str, token: str) -> None:
    await pool.execute(statements.LET_GO, run_id, token)


async def cancel_requested(pool: Pool, run_ids: list[str]) -> dict[str, bool]:
    """Of these runs, those whose end was asked for, with whether they are gone altogether."""
    rows: list[Any] = await pool.fetch(statements.CANCEL_REQUESTED, run_ids)
    return {row["id"]: row["gone"] for row in rows}


async def request_cancel(pool: Pool, run_id: str) -> bool | None:
    """Ask for the end of a run. True: a living process owns it and will see it; False: nobody does; None: it has ended."""
    row = await pool.fetchrow(statements.REQUEST_CANCEL, run_id)
    return None if row is None else bool(row["owned"])
