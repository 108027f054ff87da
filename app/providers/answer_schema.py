"""A JSON schema of the answer -> the part of JSON Schema that Anthropic's structured outputs hold a model to. Pure.

Bounds that are not taken (lengths, minima, …) go into the description, where the model can read them: whoever asked holds
the answer against the whole schema anyway. A schema that allows what the part cannot say is not translated at all.
"""

import json
from collections.abc import Mapping
from typing import Any

_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
_TAKEN = frozenset({"type", "enum", "const", "title", "description", "default", "required", "$ref"})
_LEFT_OUT = frozenset({"$schema", "$id", "$comment", "examples", "readOnly", "writeOnly", "deprecated"})
_BOUNDS = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern"}
    | {"format", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"}
)
_NAMED = frozenset({"properties", "$defs", "definitions"})
_LISTED = frozenset({"anyOf", "oneOf", "allOf"})


class _Untranslatable(Exception):
    pass


def translated(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema in the API's terms, or None where it cannot be said in them."""
    try:
        return _Translation().of(schema)
    except (_Untranslatable, RecursionError):
        return None


class _Translation:
    def of(self, schema: Any) -> dict[str, Any]:
        if not isinstance(schema, Mapping) or not schema:
            raise _Untranslatable
        said: dict[str, Any] = {}
        bounds: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _BOUNDS:
                (said if _is_taken(key, value) else bounds)[key] = value
            elif key not in _LEFT_OUT and key != "additionalProperties":
                said.update(self.keyword(key, value))
        if "type" not in said and not said.keys() & {"enum", "const", "$ref", "anyOf", "allOf"}:
            raise _Untranslatable
        if said.get("type") == "object" or "properties" in said:
            _require_closed(schema)
            said["additionalProperties"] = False
        if bounds:
            told = json.dumps(bounds, ensure_ascii=False)
            said["description"] = f"{said['description']} {told}" if said.get("description") else told
        return said

    def keyword(self, key: str, value: Any) -> dict[str, Any]:
        if key in _TAKEN:
            if key == "$ref" and not (isinstance(value, str) and value.startswith("#/")):
                raise _Untranslatable
            if key == "enum" and any(isinstance(item, dict | list) for item in value):
                raise _Untranslatable
            return {key: value}
        if key in _NAMED and isinstance(value, Mapping):
            return {key: {name: self.of(inner) for name, inner in value.items()}}
        if key in _LISTED and isinstance(value, list):
            return {"anyOf" if key == "oneOf" else key: [self.of(inner) for inner in value]}
        if key == "items":
            return {key: self.of(value)}
        raise _Untranslatable


def _is_taken(key: str, value: Any) -> bool:
    return (key == "format" and value in _FORMATS) or (key == "minItems" and value in (0, 1))


def _require_closed(schema: Mapping[str, Any]) -> None:
    """An object of free keys cannot be told: it would have none at all."""
    if isinstance(schema.get("additionalProperties"), Mapping) or not schema.get("properties"):
        raise _Untranslatable
