"""Pages of docs/reference/ that say what the code says: the fields of a TrainingJob, and the commands.

    python -m tools.reference            write trainingjob.md and cli.md
    python -m tools.reference --check    name each that differs from the models; exit status 1 if one does

The first comes from the schema in the CustomResourceDefinition, so it says what `kubectl explain` says; the
second is what `ropeteam COMMAND --help` prints. `make crds` writes both.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from tools import generated

from ropeteam.api.crd import COLUMNS, job_schema
from ropeteam.api.schema.structural import Schema
from ropeteam.cli.main import cli

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
HEADER = "<!-- Made by `make crds` from operator/ropeteam. Do not edit. -->\n\n"
RANGES = (
    ("minimum", "maximum", ""),
    ("minLength", "maxLength", " characters"),
    ("minItems", "maxItems", " items"),
)


def trainingjob() -> str:
    """Every field, one table per object, in the order of the models."""
    lines = [
        "# TrainingJob",
        "",
        "Group `ropeteam.dev`, version `v1alpha1`. How the fields work together: [the API](../api.md).",
        "",
    ]
    lines += [
        "A field that is **required** must be set. The API server sets the value in the column *default*. "
        "Without one a field stays absent, and its description says what holds then. Limits are in "
        "parentheses.",
        "",
    ]
    schema = job_schema()
    for part in ("spec", "status"):
        lines += _object(part, schema["properties"][part])
    lines += ["## Rules of the whole object", "", *_rules(schema)]
    lines += ["## Columns of `kubectl get`", "", "| column | path | shown | |", "|---|---|---|---|"]
    for name, _, path, priority, text in COLUMNS:
        lines.append(f"| {name} | `{path}` | {'with `-o wide`' if priority else 'always'} | {text} |")
    return HEADER + "\n".join(lines) + "\n"


def _object(path: str, schema: Schema) -> list[str]:
    """The section of the object at `path`, and those of the objects below it."""
    fields: dict[str, Schema] = schema["properties"]
    required = schema.get("required", ())
    level = "##" if "." not in path else "###"
    lines = [f"{level} {path}", "", _cell(schema.get("description", "")), ""]
    lines += ["| field | type | default | |", "|---|---|---|---|"]
    for name, each in fields.items():
        default = "**required**" if name in required else _default(each)
        text = " ".join(filter(None, (_cell(each.get("description", "")), _limits(each))))
        lines.append(f"| `{name}` | {_type(each)} | {default} | {text} |")
    lines.append("")
    if rules := _rules(schema):
        lines += ["Rules:", "", *rules]
    for name, each in fields.items():
        inner = each.get("items", each)
        if "properties" in inner:
            lines += _object(f"{path}.{name}{'[]' if 'items' in each else ''}", inner)
    return lines


def _type(schema: Schema) -> str:
    match schema:
        case {"enum": values}:
            return " \\| ".join(f"`{value}`" for value in values)
        case {"items": items}:
            return f"list of {_type(items)}"
        case {"format": "date-time"}:
            return "time"
        case {"x-kubernetes-int-or-string": True}:
            return "quantity"
        case {"additionalProperties": values} if isinstance(values, dict):
            return f"map of {_type(values)}"
    return str(schema["type"])


def _default(schema: Schema) -> str:
    """An object's default is that of its fields."""
    value = schema.get("default")
    return (
        ""
        if value is None or isinstance(value, dict | list)
        else f"`{value if isinstance(value, str) else json.dumps(value)}`"
    )


def _limits(schema: Schema) -> str:
    found = [_range(schema.get(low), schema.get(high), unit) for low, high, unit in RANGES]
    if "pattern" in schema:
        found.append(f"matches `{schema['pattern']}`".replace("|", "\\|"))
    return f"({', '.join(text for text in found if text)})" if any(found) else ""


def _range(low: int | None, high: int | None, unit: str) -> str:
    match low, high:
        case None, None:
            return ""
        case (None | 0, _) if unit:
            return f"at most {high}{unit}"
        case _, None:
            return f"{low} or more{unit}"
    return f"{low} to {high}{unit}"


def _rules(schema: Schema) -> list[str]:
    rules = schema.get("x-kubernetes-validations", ())
    texts = [rule["message"] for rule in rules if "message" in rule]
    return [*(f"- {_cell(text)}" for text in texts), ""] if texts else []


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def commands() -> str:
    """The help of every command."""
    top = _context(cli, "ropeteam")
    lines = ["# Commands", "", *_help(top)]
    for name, command in sorted(cli.commands.items()):
        if not command.hidden:
            lines += [f"## ropeteam {name}", "", *_help(_context(command, name, top))]
    return HEADER + "\n".join(lines)


def _context(command: click.Command, name: str, parent: click.Context | None = None) -> click.Context:
    return click.Context(command, parent, name, terminal_width=100, **command.context_settings)


def _help(context: click.Context) -> list[str]:
    return ["```text", *context.get_help().splitlines(), "```", ""]


if __name__ == "__main__":
    pages = {FOLDER / "trainingjob.md": trainingjob(), FOLDER / "cli.md": commands()}
    sys.exit(generated.main(pages, "tools/reference.py", sys.argv[1:]))
