"""Rules: what people order, sent verbatim above everything else."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from app.bodies import body
from app.rules import repository
from app.rules.models import RuleCreate, RulePatch, RuleRead, rule_json
from app.shapes import JsonObject, Listing
from app.web import Axes, Db, Idempotent, Paged, Service, database, json_response, listed

router = APIRouter(prefix="/v1", tags=["rules"])


async def _known(request: Request, rule_id: str) -> Any:
    async with database(request).transaction() as db:
        return await repository.get(db, request.state.caller.workspace_id, rule_id)


RuleInPath = Annotated[Any, Depends(_known)]
"""The rule that the path names, before the body is judged. Must stand after the caller."""


@router.post("/rules", status_code=201, response_model=RuleRead)
async def create_rule(
    caller: Service, wanted: Annotated[RuleCreate, body(RuleCreate)], once: Idempotent, db: Db
) -> Response:
    wanted.scope.check()
    values = {name: getattr(wanted, name) for name in ("content", "position", "active")}

    async def make() -> JsonObject:
        return rule_json(await repository.create(db, caller.workspace_id, wanted.scope, values))

    return await once.create(db, make)


@router.get("/rules", response_model=Listing[RuleRead])
async def list_rules(
    caller: Service, named: Axes, page: Paged, db: Db, session_id: Annotated[str | None, Query()] = None
) -> Response:
    rows = await repository.list_rules(db, caller.workspace_id, page, named, session_id)
    rows, cursor = page.cut(rows, lambda row: row.id)
    return listed([rule_json(row) for row in rows], cursor)


@router.get("/rules/{rule_id}", response_model=RuleRead)
async def get_rule(caller: Service, rule: RuleInPath) -> Response:
    return json_response(rule_json(rule))


@router.patch("/rules/{rule_id}", response_model=RuleRead)
async def change_rule(caller: Service, rule: RuleInPath, wanted: Annotated[RulePatch, body(RulePatch)], db: Db) -> Response:
    named = wanted.model_dump(exclude_unset=True)
    return json_response(rule_json(await repository.update(db, caller.workspace_id, rule.id, named)))


@router.delete("/rules/{rule_id}", status_code=204)
async def delete_rule(caller: Service, rule_id: str, db: Db) -> None:
    await db.delete(await repository.get(db, caller.workspace_id, rule_id, lock=True))
