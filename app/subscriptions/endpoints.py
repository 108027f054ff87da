"""Subscriptions: where a workspace wants to be told of its runs."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel

from app.bodies import body
from app.infra.crypto import Crypto
from app.infra.database import Connection, Pool
from app.infra.errors import Invalid
from app.outbound.address_guard import RefusedAddress
from app.outbound.headers import check_headers
from app.shapes import JsonObject, Listing
from app.subscriptions import repository
from app.subscriptions.delivery import Deliverer
from app.subscriptions.models import (
    DeliveryRead,
    DeliveryStatus,
    Subscription,
    SubscriptionCreate,
    SubscriptionPatch,
    SubscriptionRead,
    delivery_json,
    subscription_json,
)
from app.web import Db, HotDb, Idempotent, Paged, Service, database, json_response, listed

router = APIRouter(prefix="/v1", tags=["subscriptions"])


async def _known(request: Request, subscription_id: str) -> Subscription:
    async with database(request).transaction() as db:
        return await repository.get(db, request.state.caller.workspace_id, subscription_id)


SubscriptionInPath = Annotated[Subscription, Depends(_known)]
"""The subscription that the path names, before the body is judged. Must stand after the caller."""


class RotatedSecret(BaseModel):
    secret: str


def _crypto(request: Request) -> Crypto:
    found: Crypto = request.app.state.crypto
    return found


async def _check(request: Request, wanted: SubscriptionCreate | SubscriptionPatch) -> None:
    check_headers(wanted.headers or {})
    if wanted.url is None:
        return
    try:
        await request.app.state.address_guard.check_resolved(wanted.url)
    except RefusedAddress as error:
        raise Invalid(f"url: {error}.", errors=[(("body", "url"), str(error))]) from None


def _shown(request: Request, row: Subscription) -> JsonObject:
    return subscription_json(row, sorted(repository.open_headers(_crypto(request), row.id, row.headers)))


@router.post("/subscriptions", status_code=201, response_model=SubscriptionRead)
async def create_subscription(
    request: Request,
    caller: Service,
    wanted: Annotated[SubscriptionCreate, body(SubscriptionCreate)],
    once: Idempotent,
    db: Db,
) -> Response:
    """Its `secret` is shown in this answer only; it signs as a tool's does."""
    await _check(request, wanted)

    async def make() -> JsonObject:
        row, secret = await repository.create(db, _crypto(request), caller.workspace_id, wanted)
        return subscription_json(row, sorted(wanted.headers or {}), secret)

    return await once.create(db, make)


@router.get("/subscriptions", response_model=Listing[SubscriptionRead])
async def list_subscriptions(request: Request, caller: Service, page: Paged, db: Db) -> Response:
    rows, cursor = page.cut(await repository.list_subscriptions(db, caller.workspace_id, page), lambda row: row.id)
    return listed([_shown(request, row) for row in rows], cursor)


@router.get("/subscriptions/{subscription_id}", response_model=SubscriptionRead)
async def get_subscription(request: Request, caller: Service, subscription: SubscriptionInPath) -> Response:
    return json_response(_shown(request, subscription))


@router.patch("/subscriptions/{subscription_id}", response_model=SubscriptionRead)
async def change_subscription(
    request: Request,
    caller: Service,
    subscription: SubscriptionInPath,
    wanted: Annotated[SubscriptionPatch, body(SubscriptionPatch)],
    db: Db,
) -> Response:
    """`active: true` resumes a paused one; what was kept meanwhile is sent."""
    await _check(request, wanted)
    row = await repository.get(db, caller.workspace_id, subscription.id, lock=True)
    repository.change(_crypto(request), row, wanted)
    return json_response(_shown(request, row))


@router.delete("/subscriptions/{subscription_id}", status_code=204)
async def delete_subscription(caller: Service, subscription: SubscriptionInPath, db: Db) -> None:
    await db.delete(await repository.get(db, caller.workspace_id, subscription.id, lock=True))


@router.post("/subscriptions/{subscription_id}/rotate-secret", response_model=RotatedSecret)
async def rotate_subscription_secret(
    request: Request, caller: Service, subscription: SubscriptionInPath, once: Idempotent, db: Db
) -> Response:
    """The old secret goes on signing beside the new one for a day."""

    async def make() -> RotatedSecret:
        row = await repository.get(db, caller.workspace_id, subscription.id, lock=True)
        return RotatedSecret(secret=repository.rotate_secret(_crypto(request), row))

    return await once.create(db, make, 200)


@router.get("/subscriptions/{subscription_id}/deliveries", response_model=Listing[DeliveryRead])
async def list_deliveries(
    caller: Service,
    subscription: SubscriptionInPath,
    page: Paged,
    hot: HotDb,
    status: Annotated[DeliveryStatus | None, Query()] = None,
) -> Response:
    rows, cursor = page.cut(
        await repository.list_deliveries(hot, subscription.id, page, status), lambda row: str(row["place"])
    )
    return listed([delivery_json(row) for row in rows], cursor)


@router.post(
    "/subscriptions/{subscription_id}/deliveries/{delivery_id}/redeliver", status_code=202, response_model=DeliveryRead
)
async def redeliver(
    request: Request, caller: Service, subscription: SubscriptionInPath, delivery_id: str, once: Idempotent, hot: HotDb
) -> Response:
    """Have it sent once more under the same id, also when it came before or the subscription is paused."""
    deliverer: Deliverer = request.app.state.deliverer

    async def mark(db: Connection | Pool) -> JsonObject:
        return delivery_json(await repository.redeliver(db, subscription.id, delivery_id))

    answer = await once.create_hot(hot, mark, 202)
    await deliverer.deliver()
    return answer
