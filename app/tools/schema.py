"""The JSON Schema of a tool's arguments: accepted or refused once, at registration, then used to check every call.

Draft 2020-12, or the older draft that `$schema` names. A schema stands alone: what it refers to is inside it.
"""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import jsonschema_rs

from app.infra.errors import Invalid
from app.loop.ports import CheckedArguments
from app.tools.coercion import coerced
from app.tools.problems import problems_of

MAX_SCHEMA_BYTES = 128 * 1024
MAX_SCHEMA_DEPTH = 64
PLACE = ("body", "parameters")

_OF_OBJECTS = frozenset(
    {
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "minProperties",
        "maxProperties", "dependentRequired", "dependentSchemas", "unevaluatedProperties", "$ref", "allOf", "anyOf",
        "oneOf",
    }
)  # fmt: skip
_PATTERNS = jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000)


class CompiledSchema:
    """A schema that was accepted. `schema` is it as a model is sent it: always with `"type": "object"`."""

    def __init__(self, schema: dict[str, Any], validator: jsonschema_rs.Validator) -> None:
        self.schema = schema
        self._validator = validator

    def check(self, arguments: dict[str, Any]) -> CheckedArguments:
        """The arguments as the schema takes them, or what is wrong with them, a line for each place.

        A string that is exactly the JSON of a wanted number, integer or boolean is taken as that, at any depth; the given
        object is never changed.
        """
        if self._validator.is_valid(arguments):
            return CheckedArguments(arguments)
        taken = coerced(arguments, self._validator)
        problems = problems_of(self._validator.iter_errors(taken))
        return CheckedArguments(arguments if problems else taken, problems)


def compile_schema(schema: Any) -> CompiledSchema:
    """Accept a schema of a tool's arguments, or raise `Invalid` that says where it is wrong.

    `{}` stands for a tool without arguments, and `type` may be left out where a keyword of objects stands; both are
    completed to `"type": "object"`, since that is what model APIs ask for.
    """
    completed = _completed(schema)
    text = _text(completed)
    if len(text) > MAX_SCHEMA_BYTES:
        raise _refused(f"The schema is larger than {MAX_SCHEMA_BYTES} bytes.")
    try:
        # `offline`: nothing is ever fetched, neither over the network nor from files.
        validator = jsonschema_rs.validator_for(completed, offline=True, pattern_options=_PATTERNS)
    except jsonschema_rs.ValidationError as error:
        raise _refused(_reason(error), error.instance_path) from None
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise _refused(f"The schema is not valid: {str(error).splitlines()[0][:300]}") from None
    return CompiledSchema(completed, validator)


@lru_cache(maxsize=2048)
def compiled(schema_json: str) -> CompiledSchema:
    """`compile_schema` of a JSON text, remembered: a tool's schema is compiled once, however often it is called."""
    return compile_schema(json.loads(schema_json))


def _completed(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, dict):
        raise _refused("The parameters must be a JSON Schema of an object.")
    if _deeper_than(schema, MAX_SCHEMA_DEPTH):
        raise _refused(f"The schema is nested deeper than {MAX_SCHEMA_DEPTH}.")
    if schema == {}:
        return {"type": "object", "properties": {}}
    if "type" not in schema and not _OF_OBJECTS.isdisjoint(schema):
        return {"type": "object", **schema}
    if "type" not in schema:
        hint = " Give the schema itself, not a tool definition around it." if _is_wrapped(schema) else ""
        raise _refused(f'The schema must have "type": "object".{hint}')
    if schema["type"] != "object":
        hint = " Give the schema itself, not a tool definition around it." if _is_wrapped(schema) else ""
        raise _refused(f'The "type" of the schema must be "object".{hint}', ("type",))
    return schema


def _is_wrapped(schema: dict[str, Any]) -> bool:
    return any(isinstance(schema.get(key), dict) for key in ("function", "parameters", "input_schema", "inputSchema"))


def _deeper_than(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    if levels == 0:
        return True
    return any(_deeper_than(item, levels - 1) for item in (value.values() if isinstance(value, dict) else value))


def _text(schema: dict[str, Any]) -> bytes:
    try:
        return json.dumps(schema, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError):
        raise _refused("The schema is not valid JSON.") from None


def _reason(error: jsonschema_rs.ValidationError) -> str:
    message = error.message
    if "Retrieval is disabled" in message:
        return "The schema refers to something outside itself ($ref), which is never fetched. Move it into $defs."
    if message.startswith("Unknown meta-schema"):
        return "The schema names a dialect ($schema) that is not known."
    return f"The schema is not valid: {message[:300]}"


def _refused(text: str, path: Sequence[str | int] = ()) -> Invalid:
    return Invalid(text, errors=[((*PLACE, *path), text)])
