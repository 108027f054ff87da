"""What is asked of every route of the service, so that a new one cannot forget it."""

import inspect
from collections.abc import Iterator

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from app.main import ROUTERS

ROUTES = [route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute)]


def called(dependant: Dependant) -> Iterator[object]:
    """Everything that is called for a request."""
    yield dependant.call
    for inner in dependant.dependencies:
        yield from called(inner)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{min(route.methods)} {route.path}")
def test_nothing_is_called_in_a_thread(route: APIRoute) -> None:
    """A plain function would be: that costs a request more than all that these functions do."""
    functions = [one for one in called(route.dependant) if one is not None]
    assert [one for one in functions if not (inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one))] == []
