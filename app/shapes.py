"""What request bodies have in common, and lists."""

from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

JsonObject = dict[str, Any]


class Shape(BaseModel):
    """A request body or a part of one: unknown fields are refused, and nothing is silently converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


Item = TypeVar("Item")


class Listing(BaseModel, Generic[Item]):
    """A page of a list. `next` is the cursor of the page after it, null where there is none."""

    data: list[Item]
    next: str | None
