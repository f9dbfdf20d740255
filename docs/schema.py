"""``docs/answer.schema.json``, from the types of the answers: ``python docs/schema.py`` prints it."""

from __future__ import annotations

import inspect
import json
import sys
from typing import Any

import msgspec

from bisect_trt.report.answers import ANSWERS, Answer

_ABOUT = (
    "The JSON that --json writes (docs/json.md). Commands may add keys; those named here keep their meaning within a schema "
    "number. Numbers that JSON lacks are the strings inf, -inf and nan."
)


def _with_texts(part: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Return a part of the schema that lets a number be the text of one that JSON lacks."""
    if part == {"type": "number"}:
        return {"$ref": "#/$defs/Number"}
    if isinstance(part, dict):
        # Python 3.13 removes the indentation of docstrings, earlier ones do not.
        return {
            name: inspect.cleandoc(each)
            if name == "description" and isinstance(each, str)
            else _with_texts(each)
            for name, each in part.items()
        }
    return list(map(_with_texts, part)) if isinstance(part, list) else part


def schema() -> dict[str, Any]:
    """Return the JSON schema: the fields of all answers, and for each command the type of its answer."""
    kinds: list[type[Answer]] = [Answer, *ANSWERS.values()]
    _, components = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    parts = {name: _with_texts(part) for name, part in components.items()}
    parts["Number"] = {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]}
    for kind in kinds:
        part = parts[kind.__name__]
        for unwritten in ("other", "lines"):
            part["properties"].pop(unwritten)
        for name, described in part["properties"].items():
            if name not in part["required"]:  # nothing was found
                part["properties"][name] = {"anyOf": [described, {"type": "null"}]}
    properties: dict[str, Any] = {
        name: {} for kind in kinds for name in parts[kind.__name__]["properties"]
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Answer of a bisect-trt command",
        "description": _ABOUT,
        "type": "object",
        "required": ["schema", *parts["Answer"]["required"]],
        "properties": {**properties, "schema": {"const": 1}},
        "allOf": [
            {
                "if": {"properties": {"command": {"const": command}}},
                "then": {"$ref": f"#/$defs/{kind.__name__}"},
            }
            for command, kind in ANSWERS.items()
        ],
        "$defs": parts,
    }


def text() -> str:
    """Return the file."""
    return json.dumps(schema(), indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
