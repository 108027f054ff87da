"""What an endpoint reads: the request's body, as the model that it asks for."""

from typing import Any, TypeVar

from fastapi import Depends, Request
from pydantic import BaseModel, ValidationError

from app.infra.errors import Invalid, TooLarge, UnsupportedMediaType
from app.json_door import read_json

MAX_BODY_BYTES = 4 * 1024 * 1024

Model = TypeVar("Model", bound=BaseModel)


def body(model: type[Model]) -> Any:
    """The request's body as `model`. Refuses what is too large, no JSON, too deep, or not of that shape."""

    async def read(request: Request) -> Model:
        value = request.state.body = read_json(await _raw_body(request))
        try:
            return model.model_validate(value)
        except ValidationError as error:
            raise Invalid(errors=[(place_in(value, item["loc"]), item["msg"]) for item in error.errors()]) from None

    read.body_model = model  # type: ignore[attr-defined]
    return Depends(read)


def place_in(body: Any, loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Where in the body an error is: pydantic's `loc` without the names of the alternatives that it tried there."""
    for end in range(len(loc), 0, -1):
        place = _walked(body, loc[:end])
        if place is not None:
            return ("body", *place)
    return ("body",)


def _walked(value: Any, steps: tuple[int | str, ...]) -> tuple[int | str, ...] | None:
    """The steps that lead through the value, the last of them always; None where they do not."""
    if not steps:
        return ()
    step, rest = steps[0], steps[1:]
    if isinstance(value, dict) and (step in value or not rest):
        inside = _walked(value.get(step), rest)
    elif isinstance(value, list) and isinstance(step, int) and step < len(value):
        inside = _walked(value[step], rest)
    else:
        inside = None
    if inside is not None:
        return (step, *inside)
    return _walked(value, rest) if rest else None


async def _raw_body(request: Request) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > MAX_BODY_BYTES:
        raise TooLarge("A body may have 4 MiB at most.")
    received = bytearray()
    async for chunk in request.stream():
        received += chunk
        if len(received) > MAX_BODY_BYTES:
            raise TooLarge("A body may have 4 MiB at most.")
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if received and media_type != "application/json" and not media_type.endswith("+json"):
        raise UnsupportedMediaType("Content-Type must be application/json.")
    return bytes(received) or b"{}"
