"""What was spent, and what models get wrong with tools."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from app.infra import clock
from app.infra.errors import Invalid
from app.scope import parse_axes
from app.shapes import Listing
from app.usage import repository
from app.usage.models import InsightRead, UsageRead
from app.web import HotDb, Paged, Service, listed

router = APIRouter(prefix="/v1", tags=["usage"])

_DAYS = 30
Span = tuple[datetime, datetime]


def _moment(name: str, text: str) -> datetime:
    """A day (its beginning, UTC) or a moment with its offset."""
    try:
        if "T" not in text and " " not in text:
            return datetime.combine(date.fromisoformat(text), time(), UTC)
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise Invalid(errors=[(("query", name), "a day (2026-12-31) or a moment (2026-12-31T00:00:00Z) is expected")])
    return found


async def _span(
    start: Annotated[str | None, Query(alias="from", max_length=40)] = None,
    end: Annotated[str | None, Query(alias="to", max_length=40)] = None,
) -> Span:
    to = clock.now() + timedelta(seconds=1) if end is None else _moment("to", end)
    since = to - timedelta(days=_DAYS) if start is None else _moment("from", start)
    if since >= to:
        raise Invalid(errors=[(("query", "from"), "must be before `to`")])
    return since, to


InSpan = Annotated[Span, Depends(_span)]
"""`from` (30 days before `to`) up to `to` (now), which is not in it."""


def _names(query: str, text: str, known: Sequence[str]) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        raise Invalid(errors=[(("query", query), f"'{unknown[0]}' is none of {', '.join(known)}")])
    return list(dict.fromkeys(names))


@router.get("/usage", response_model=Listing[UsageRead], response_model_exclude_unset=True)
async def get_usage(
    request: Request,
    caller: Service,
    span: InSpan,
    page: Paged,
    hot: HotDb,
    group_by: Annotated[str, Query(max_length=100)] = "",
    tenant: Annotated[str | None, Query(max_length=400)] = None,
) -> Response:
    """Tokens of every model call that was answered, those of compression and distillation among them. `group_by` names any
    of tenant, model, agent and day; without it there is one sum."""
    groups = _names("group_by", group_by, list(repository.GROUPS))
    named = parse_axes({"tenant": tenant}).get("tenant")
    rows = await repository.usage(
        hot, caller.workspace_id, span, named, groups, request.app.state.prices, page.cursor, page.limit + 1
    )
    rows, cursor = page.cut(rows, _key)
    return listed([repository.shown_group(row, groups) for row in rows], cursor)


@router.get("/insights", response_model=Listing[InsightRead], response_model_exclude_unset=True)
async def get_insights(
    caller: Service,
    span: InSpan,
    page: Paged,
    hot: HotDb,
    by: Annotated[str, Query(max_length=100)] = "tool,model",
) -> Response:
    """What became of the calls that models made of tools: which arguments were invalid, which names unknown, what failed,
    what found nothing."""
    names = _names("by", by, repository.INSIGHTS) or list(repository.INSIGHTS)
    rows = await repository.insights(hot, caller.workspace_id, span, names, page.cursor, page.limit + 1)
    rows, cursor = page.cut(rows, _key)
    return listed([repository.shown_insight(row, names) for row in rows], cursor)


def _key(row: Any) -> str:
    key: str = row["key"]
    return key
