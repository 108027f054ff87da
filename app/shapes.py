"""What request bodies have in common."""

from typing import Any

from pydantic import BaseModel, ConfigDict

JsonObject = dict[str, Any]


class Shape(BaseModel):
    """A request body or a part of one: unknown fields are refused, and nothing is silently converted."""

    model_config = ConfigDict(extra="forbid", strict=True)
