"""Rules in the database, within a workspace."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import text
from sqlmodel import col, select
from sqlmodel.ext.asyncio.session import AsyncSession

from app.infra import clock, ids
from app.infra.database import Pool
from app.infra.errors import NotFound
from app.rules.models import Rule
from app.scope import APPLIES_TO_SESSION, Reference, Scope, applies
from app.web import Page

_IN_SESSION = APPLIES_TO_SESSION.format(session_id=":session_id", workspace_id=":in_workspace_id")

# the tenant's own first, then what is about the subject, then what is for the member alone
_APPLYING = f"""
SELECT content FROM rules WHERE workspace_id = $1 AND {applies(2)} AND active
 ORDER BY member_type IS NOT NULL, subject_type IS NOT NULL, position, id
"""


async def applying(pool: Pool, workspace_id: str, scope: Scope) -> list[str]:
    """The texts of the active rules that apply to a scope, verbatim, in the order of sending."""
    rows = await pool.fetch(_APPLYING, workspace_id, *scope.as_columns().values())
    return [row["content"] for row in rows]


async def create(db: AsyncSession, workspace_id: str, scope: Scope, values: Mapping[str, Any]) -> Rule:
    now = clock.now()
    fields: dict[str, Any] = {**scope.as_columns(), **values}
    row = Rule(id=ids.new(ids.RULE), workspace_id=workspace_id, created_at=now, updated_at=now, **fields)
    db.add(row)
    return row


async def get(db: AsyncSession, workspace_id: str, rule_id: str, *, lock: bool = False) -> Rule:
    """One rule; raises NotFound."""
    row = await db.get(Rule, rule_id, with_for_update=lock) if ids.is_id(rule_id, ids.RULE) else None
    if row is None or row.workspace_id != workspace_id:
        raise NotFound()
    return row


async def update(db: AsyncSession, workspace_id: str, rule_id: str, values: Mapping[str, Any]) -> Rule:
    """Change what `values` names; raises NotFound."""
    row = await get(db, workspace_id, rule_id, lock=True)
    for name, value in values.items():
        setattr(row, name, value)
    row.updated_at = clock.now()
    return row


async def list_rules(
    db: AsyncSession, workspace_id: str, page: Page, axes: Mapping[str, Reference | None], session_id: str | None
) -> list[Rule]:
    """Newest first. `axes` holds the axes that are filtered; `session_id` keeps those that apply to that session."""
    query = select(Rule).where(Rule.workspace_id == workspace_id)
    for name, reference in axes.items():
        query = query.where(getattr(Rule, f"{name}_type") == (reference.type if reference else None))
        query = query.where(getattr(Rule, f"{name}_id") == (reference.id if reference else None))
    if session_id is not None:
        query = query.where(text(_IN_SESSION).bindparams(session_id=session_id, in_workspace_id=workspace_id))
    if page.cursor is not None:
        query = query.where(Rule.id < page.cursor)
    return list((await db.exec(query.order_by(col(Rule.id).desc()).limit(page.limit + 1))).all())
