"""Questions that schemathesis makes of the OpenAPI document, and what must hold for every answer.

A question names things that exist where it can, so that it gets past the door; the rest is odd on purpose.
"""

import re
from collections.abc import Mapping
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance,
]  # fmt: skip
PATIENCE_SECONDS = 20
FITTING: dict[str, Any] = {
    "model": "scripted/odd", "script": ["Hi."], "tools": [], "url": "http://127.0.0.1:1/x", "parameters": {"type": "object"},
    "base_url": "http://127.0.0.1:1/v1", "headers": {"X-Odd": "1"},
}  # fmt: skip
NAMES_NOTHING = {"agent_id", "capabilities", "session_id"}
"""Fields that name something that is not there."""


def operations(document: Mapping[str, Any]) -> dict[str, Any]:
    """Every operation of the document, by its method and path."""
    schema = schemathesis.openapi.from_dict(dict(document))
    found = [result.ok() for result in schema.get_all_operations()]
    return {f"{operation.method.upper()} {operation.path}": operation for operation in found}


def ask(operation: Any, base_url: str, key: str, names: Mapping[str, str], examples: int, with_seed: int) -> int:
    """Ask an operation that many odd questions; returns how many got past the door (2xx). Raises what schemathesis raises.

    `names` are what stands for the path parameters; the same seed asks the same questions.
    """
    accepted = 0
    session = requests.Session()
    session.trust_env = False
    questions = st.one_of(
        operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
        operation.as_strategy(generation_mode=GenerationMode.NEGATIVE),
    )

    @seed(with_seed)
    @settings(
        max_examples=examples, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=questions, is_known=st.sampled_from([True, True, True, False]))
    def question(case: Any, is_known: bool) -> None:
        nonlocal accepted
        if is_known:
            case.path_parameters = {**(case.path_parameters or {}), **_known(operation.path, names)}
            case.body = _fitting(case.body)
        case.headers = {**(case.headers or {}), "Authorization": f"Bearer {key}"}
        response = case.call(base_url=base_url, session=session, timeout=PATIENCE_SECONDS)
        case.validate_response(response, checks=CHECKS)
        accepted += response.status_code < 300

    question()
    return accepted


def _known(path: str, names: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name in re.findall(r"{(\w+)}", path):
        found[name] = names.get(f"name of {path.split('/')[2]}" if name == "name" else name, "x")
    return found


def _fitting(body: Any) -> Any:
    """What no generator would guess, so that the rest of a body is looked at."""
    if not isinstance(body, dict):
        return body
    kept = {name: value for name, value in body.items() if name not in NAMES_NOTHING}
    return {name: FITTING.get(name, value) for name, value in kept.items()}
