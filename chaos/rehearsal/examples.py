"""Examples of pydantic models: what a stand-in answers, and a business record to begin with."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ValidationError

from domain.error_words import first_problem
from domain.faults import UsageError
from domain.messages import Json

_FORMATS = {
    "date": "2030-01-01",
    "date-time": "2030-01-01T00:00:00Z",
    "duration": "PT1S",
    "email": "ada@example.com",
    "time": "00:00:00Z",
    "uri": "https://example.com/",
    "uuid": "5f0c5f0c-5f0c-4f0c-8f0c-5f0c5f0c5f0c",
}
_PLAIN: dict[str, Any] = {"boolean": True, "null": None}


def example(model: type[BaseModel]) -> Json:
    """What the model says of itself under `examples`, or something that its schema allows.

    Raises:
        UsageError: Its schema does not say enough.
    """
    schema = model.model_json_schema()
    found = _value(schema, schema.get("$defs", {}))
    try:
        model.model_validate_json(json.dumps(found))
    except ValidationError as error:
        raise UsageError(
            f"no example of {model.__name__} can be made ({first_problem(error)}): give it one in its model_config,"
            ' json_schema_extra={"examples": [...]}'
        ) from error
    return dict(found)


def _value(schema: Json, defs: Json) -> Any:  # noqa: PLR0911 (a table)
    match schema:
        case {"examples": [first, *_]} | {"default": first} | {"const": first} | {"enum": [first, *_]}:
            return first
        case {"$ref": str(ref)}:
            return _value(defs[ref.rpartition("/")[2]], defs)
        case {"anyOf": [first, *_]} | {"oneOf": [first, *_]} | {"allOf": [first, *_]}:
            return _value(first, defs)
        case {"type": "object"}:
            wanted = schema.get("required", [])
            return {name: _value(schema["properties"][name], defs) for name in wanted}
        case {"type": "array"}:
            return [_value(schema.get("items", {}), defs)] * max(1, schema.get("minItems", 0))
        case {"type": "integer" | "number"}:
            return schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        case {"type": str(kind)} if kind in _PLAIN:
            return _PLAIN[kind]
    return _FORMATS.get(schema.get("format", ""), "x" * max(1, schema.get("minLength", 0)))
