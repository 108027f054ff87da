"""Every store that keeps something of a scope, once: what is erased and what is exported are both read from here.

A row belongs to a scope by its own axes, or by what it hangs on (a run, a session, a memory, an agent). A new table is a new
line of `STORES`; a test holds it against the tables of the database.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.scope import Reference

Axes = Mapping[str, Reference | None]
"""The axes that are named: a reference, or None where that axis must be absent. One that is not named means any."""

GIVEN = (
    "WITH given AS (SELECT $1::text AS workspace, $2::text[] AS runs, $3::text[] AS sessions, $4::text[] AS memories,"
    " $5::text[] AS agents, $6::text AS tenant_type, $7::text AS tenant_id, $8::text AS subject_type,"
    " $9::text AS subject_id, $10::text AS member_type, $11::text AS member_id)"
)
"""What every statement here has in front: eleven places, of which it may use any."""

_WORKSPACE = "workspace_id = (SELECT workspace FROM given)"


@dataclass(frozen=True, slots=True)
class Store:
    """`key` orders its rows; `hidden` columns are not exported: they are made of others, or are ours alone."""

    table: str
    key: tuple[str, ...]
    rows: str
    hidden: tuple[str, ...] = ()


def within(axes: Axes) -> str:
    """The condition on a table that has the three axes."""
    parts = [_WORKSPACE, *(_axis(name, reference) for name, reference in axes.items())]
    return " AND ".join(parts)


def within_tenant(axes: Axes) -> str:
    """The condition on a table that knows a tenant only: its rows are about no subject and for no member."""
    if axes.get("tenant") is None or axes.get("subject") is not None or axes.get("member") is not None:
        return "false"
    return _axis("tenant", axes["tenant"])


def _axis(name: str, reference: Reference | None) -> str:
    if reference is None:
        return f"{name}_type IS NULL"
    return f"{name}_type = (SELECT {name}_type FROM given) AND {name}_id = (SELECT {name}_id FROM given)"


def _of(column: str, what: str) -> str:
    return f"{column} = ANY((SELECT {what} FROM given)::text[])"


def stores(axes: Axes) -> Sequence[Store]:
    """In the order of erasing: what hangs on something stands before it."""
    scoped, tenants = within(axes), within_tenant(axes)
    fired = scoped.replace(_WORKSPACE, f"agent_id IN (SELECT id FROM agents WHERE {_WORKSPACE})")
    of_run, of_session, of_agent = _of("run_id", "runs"), _of("session_id", "sessions"), _of("agent_id", "agents")
    of_memory = _of("memory_id", "memories")
    return (
        Store("run_events", ("run_id", "seq"), of_run),
        Store("deliveries", ("id",), of_run, ("workspace_id", "claim")),
        Store("tool_calls", ("id",), of_run),
        Store("iterations", ("run_id", "iteration"), of_run),
        Store("messages", ("id",), of_session),
        Store("compressions", ("session_id",), of_session, ("claim",)),
        Store("memory_sources", ("memory_id", "session_id", "position"), f"({of_memory} OR {of_session})"),
        Store("memory_events", ("id",), f"{_WORKSPACE} AND {of_memory}", ("workspace_id",)),
        Store("memories", ("id",), _of("id", "memories"), ("workspace_id", "scope_hash", "norm", "norm_hash", "words")),
        Store("distillations", ("id",), of_session),
        Store("memory_tombstones", ("workspace_id", "scope_hash", "norm_hash"), scoped, ("workspace_id", "scope_hash")),
        Store("rules", ("id",), scoped, ("workspace_id", "scope_hash")),
        Store("firings", ("id",), f"(({fired}) OR {of_agent} OR {of_run})"),
        Store("agent_days", ("agent_id", "tenant_type", "tenant_id", "day"),
              f"({of_agent} OR (agent_id IN (SELECT id FROM agents WHERE {_WORKSPACE}) AND {tenants}))"),
        Store("vault_entries", ("owner", "label", "number", "variant"),
              f"owner IN (SELECT owner FROM vault_keys WHERE ({scoped}) OR {of_session})", ("digest", "sealed")),
        Store("vault_keys", ("owner",), f"(({scoped}) OR {of_session})", ("workspace_id", "sealed_key")),
        Store("usage_records", ("id",), f"({_WORKSPACE} AND {tenants})", ("workspace_id",)),
        Store("client_tokens", ("hash",), of_session, ("workspace_id", "hash")),
        Store("runs", ("id",), _of("id", "runs"), ("workspace_id", "claim")),
        Store("sessions", ("id",), _of("id", "sessions"), ("workspace_id", "distil_claim", "distil_claimed_until")),
        Store("agents", ("id",), _of("id", "agents"), ("workspace_id",)),
    )  # fmt: skip


def axis_values(axes: Axes) -> list[Any]:
    """The last six places of `GIVEN`."""
    named = [axes.get(name) for name in ("tenant", "subject", "member")]
    return [value for reference in named for value in ((reference.type, reference.id) if reference else (None, None))]
