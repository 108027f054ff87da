"""`response_schema`: the final answer as JSON that fits a schema of the caller's."""

import json
import re
from collections.abc import Callable
from typing import Any

import jsonschema_rs

from app.infra.errors import Invalid
from app.loop.cleaning import TooDeep, clean_json
from app.loop.ports import ParsedAnswer
from app.tools.problems import problems_of

_FENCED = re.compile(r"^\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*$", re.DOTALL | re.IGNORECASE)
_PATTERNS = jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000)


def check_schema(schema: dict[str, Any]) -> None:
    """Raises Invalid for what is no JSON Schema, or refers to something outside itself."""
    try:
        _validator(schema)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        reason = str(error).splitlines()[0][:300]
        raise Invalid("response_schema is not valid.", errors=[(("body", "response_schema"), reason)]) from None


def answer_parser(schema: dict[str, Any]) -> Callable[[str], ParsedAnswer]:
    """Reads an answer (bare JSON, or in a fence) and checks it."""
    validator = _validator(schema)

    def parse(text: str) -> ParsedAnswer:
        read = read_json(text)
        problems = () if read.problem else problems_of(validator.iter_errors(read.value))
        return ParsedAnswer(None, "; ".join(problems)) if problems else read

    return parse


def read_json(text: str) -> ParsedAnswer:
    """An answer as JSON, bare or in a fence, whatever its shape."""
    fenced = _FENCED.match(text)
    try:
        return ParsedAnswer(clean_json(json.loads(fenced.group(1) if fenced else text)))
    except (ValueError, RecursionError, TooDeep):
        return ParsedAnswer(None, "it is not JSON")


def _validator(schema: dict[str, Any]) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(schema, offline=True, pattern_options=_PATTERNS)
