"""What tokens cost, per million of them, as `RONDO_PRICES` says it."""

from decimal import Decimal
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

Price = Annotated[Decimal, Field(ge=0, le=1_000_000, allow_inf_nan=False)]


class ModelPrice(BaseModel):
    """Of a million tokens. `cached` is that of cached input tokens; unset it is that of the others."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: Price
    output: Price
    cached: Price | None = None


_PRICES = TypeAdapter(dict[str, ModelPrice])


def prices_of(text: str) -> dict[str, ModelPrice]:
    """`{"openai/gpt-5": {"input": 1.25, "cached": 0.125, "output": 10}}`. Raises ValueError for anything else."""
    return _PRICES.validate_json(text)
