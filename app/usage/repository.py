"""Sums of what was spent, and of what became of calls. Groups come in the order of their key, which is the cursor too."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import asyncpg

from app.infra import ids
from app.infra.database import Pool
from app.scope import Reference
from app.usage.prices import ModelPrice

GROUPS = {
    "tenant": ("tenant_type", "tenant_id"),
    "model": ("model",),
    "agent": ("agent_id",),
    "day": ("day",),
}
"""What usage may be grouped by, and the columns of each."""
INSIGHTS = ("tool", "model")
_SEPARATOR = "chr(31)"
_SUM_SECONDS = 60.0

# $1 workspace, $2 from, $3 to, $4 and $5 tenant or NULL, $6 prices, $7 after which key or NULL, $8 how many
_USAGE = """
WITH priced AS (
  SELECT * FROM jsonb_to_recordset($6::jsonb) AS p(model text, input numeric, cached numeric, output numeric)),
records AS (
  SELECT r.*, to_char(r.at AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS day,
         ((r.input_tokens - r.cached_tokens) * p.input + r.cached_tokens * p.cached + r.output_tokens * p.output) / 1000000
           AS cost
    FROM usage_records AS r LEFT JOIN priced AS p USING (model)
   WHERE r.workspace_id = $1 AND r.at >= $2 AND r.at < $3
     AND ($4::text IS NULL OR (r.tenant_type = $4 AND r.tenant_id = $5))),
summed AS (
  SELECT {key} AS key{columns}, count(*) AS calls, coalesce(sum(input_tokens), 0)::bigint AS input_tokens,
         coalesce(sum(output_tokens), 0)::bigint AS output_tokens, coalesce(sum(cached_tokens), 0)::bigint AS cached_tokens,
         coalesce(sum(reasoning_tokens), 0)::bigint AS reasoning_tokens, round(sum(cost), 6)::float8 AS cost
    FROM records {grouping} HAVING count(*) > 0)
SELECT * FROM summed WHERE $7::text IS NULL OR key > $7 ORDER BY key LIMIT $8
"""

# $1 workspace, $2 from which and $3 to which run id, $4 after which key or NULL, $5 how many. A call belongs to the time at
# which its run was accepted, which its id holds.
_INSIGHTS = """
WITH calls AS (
  SELECT c.tool, i.reply->>'model' AS model, c.outcome, c.hint_streak, c.seconds
    FROM runs AS r JOIN tool_calls AS c ON c.run_id = r.id
    JOIN iterations AS i ON i.run_id = c.run_id AND i.iteration = c.iteration
   WHERE r.workspace_id = $1 AND r.id >= $2 AND r.id < $3 AND c.outcome IS NOT NULL),
summed AS (
  SELECT {key} AS key, {columns}, count(*) AS calls, {outcomes}, count(hint_streak) AS hints,
         round(avg(seconds)::numeric, 6)::float8 AS seconds
    FROM calls GROUP BY {columns})
SELECT * FROM summed WHERE $4::text IS NULL OR key > $4 ORDER BY key LIMIT $5
"""
_OUTCOMES = ("ok", "neutral", "empty", "error", "invalid", "unknown", "failed", "denied", "cancelled", "skipped")


async def usage(
    pool: Pool,
    workspace_id: str,
    span: tuple[datetime, datetime],
    tenant: Reference | None,
    groups: Sequence[str],
    prices: Mapping[str, ModelPrice],
    after: str | None,
    limit: int,
) -> list[asyncpg.Record]:
    """What was spent in a span of time, from its beginning up to its end; without groups one sum of it all, if there is
    any."""
    columns = [column for group in groups for column in GROUPS[group]]
    query = _USAGE.format(
        key=_key(columns), columns="".join(f", {column}" for column in columns),
        grouping=f"GROUP BY {', '.join(columns)}" if columns else "",
    )  # fmt: skip
    known = [
        {"model": model, "input": str(price.input), "output": str(price.output),
         "cached": str(price.input if price.cached is None else price.cached)}
        for model, price in prices.items()
    ]  # fmt: skip
    of = (None, None) if tenant is None else (tenant.type, tenant.id)
    rows: list[asyncpg.Record] = await pool.fetch(query, workspace_id, *span, *of, known, after, limit, timeout=_SUM_SECONDS)
    return rows


async def insights(
    pool: Pool, workspace_id: str, span: tuple[datetime, datetime], by: Sequence[str], after: str | None, limit: int
) -> list[asyncpg.Record]:
    """What became of the calls of runs that were accepted in a span of time."""
    outcomes = ", ".join(f"count(*) FILTER (WHERE outcome = '{outcome}') AS {outcome}" for outcome in _OUTCOMES)
    query = _INSIGHTS.format(key=_key(by), columns=", ".join(by), outcomes=outcomes)
    first, last = (ids.first_at(ids.RUN, moment) for moment in span)
    rows: list[asyncpg.Record] = await pool.fetch(query, workspace_id, first, last, after, limit, timeout=_SUM_SECONDS)
    return rows


def _key(columns: Sequence[str]) -> str:
    if not columns:
        return "''::text"
    return f" || {_SEPARATOR} || ".join(f"coalesce({column}, '')" for column in columns) + ' COLLATE "C"'


def shown_group(row: Mapping[str, Any], groups: Sequence[str]) -> dict[str, Any]:
    """One sum as the API shows it, with what it was grouped by."""
    shown: dict[str, Any] = {}
    if "tenant" in groups:
        shown["tenant"] = {"type": row["tenant_type"], "id": row["tenant_id"]}
    shown |= {column: row[column] for group in groups if group != "tenant" for column in GROUPS[group]}
    counts = ("calls", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "cost")
    return shown | {name: row[name] for name in counts}


def shown_insight(row: Mapping[str, Any], by: Sequence[str]) -> dict[str, Any]:
    return {name: row[name] for name in (*by, "calls", *_OUTCOMES, "hints", "seconds")}
