"""Writing down what a model call has cost, in the statement that stores its answer, or beside it where there is none."""

from app.infra.database import Pool
from app.loop.messages import Usage

_COUNTS = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens")


def recorded(whose: str, purpose: str, model: str, usage: str) -> str:
    """A CTE's text: one record for the row of `whose` (workspace_id, tenant, agent_id). The others are SQL expressions,
    `usage` one of a JSON object of counts."""
    counts = ", ".join(f"coalesce(({usage}->>'{name}')::bigint, 0)" for name in _COUNTS)
    columns = ", ".join(("workspace_id", "at", "tenant_type", "tenant_id", "agent_id", "model", "purpose", *_COUNTS))
    return f"""INSERT INTO usage_records ({columns})
  SELECT w.workspace_id, now(), w.tenant_type, w.tenant_id, w.agent_id, {model}, {purpose}, {counts} FROM {whose} AS w"""


# $1 session, $2 purpose, $3 model, $4 usage
_OF_SESSION = f"WITH s AS (SELECT * FROM sessions WHERE id = $1) {recorded('s', '$2::text', '$3::text', '$4::jsonb')}"


async def record_for_session(pool: Pool, session_id: str, purpose: str, model: str, usage: Usage) -> None:
    """A model call that belongs to no run; of an erased session nothing is written down."""
    await pool.execute(_OF_SESSION, session_id, purpose, model, usage.as_dict())
