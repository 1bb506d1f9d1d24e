"""Every sentence a user can get about a TrainingJob, in `messages.txt`: changed on purpose only.

`python -m tests.api.test_messages` writes the file again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ropeteam.api.rule import Rule
from ropeteam.api.rules.rulebook import CHANGES, RULES
from ropeteam.api.rules.validate import validate

FILE = Path(__file__).with_name("messages.txt")
_VOLUME: dict[str, Any] = {"emptyDir": {}}
_SIGNINGS: tuple[Any, ...] = (
    {},
    "keys",
    {"secretName": "My_Keys"},
    {"secret": "keys"},
    {"secretName": "../k"},
)
BAD: tuple[Any, ...] = (
    None,
    "train.py",
    {},
    {"workers": 0},
    {"workers": 5000},
    {"workers": "3"},
    {"workers": 1.5},
    {"workers": True},
    {"workers": 1, "worker": 2},
    {"workers": 1, "gpus_per_worker": 2},
    {"workers": 1, "processesperworker": 2},
    {"workers": 1, "replicaSpecs": {}},
    {"workers": 1, "command": "python train.py"},
    {"workers": 1, "command": []},
    {"workers": 1, "command": ["python", 3]},
    {"workers": 1, "command": ["x"] * 257},
    {"workers": 1, "image": ""},
    {"workers": 1, "image": "x" * 1025},
    {"workers": 1, "image": None},
    {"workers": 1, "launcher": "perrank"},
    {"workers": 1, "launcher": "mpirun"},
    {"workers": 1, "suspend": "yes"},
    {"workers": 1, "sharedMemory": "8G"},
    {"workers": 1, "restartedAt": "yesterday"},
    {"workers": 1, "restartedAt": "2030-01-31T12:00:00"},
    {"workers": 1, "env": {"A": "1"}},
    {"workers": 1, "env": ["A=1"]},
    {"workers": 1, "env": [{"value": "1"}]},
    {"workers": 1, "env": [{"name": "A"}, {"name": "A"}]},
    {"workers": 1, "resources": {"limits": {"cpu": 0.5}}},
    {"workers": 1, "resources": {"limits": {"cpu": None}}},
    {"workers": 1, "template": {"spec": {"containers": {"name": "trainer"}}}},
    {"workers": 1, "template": {"spec": {"containers": [{"image": "a"}]}}},
    {"workers": 1, "checkpoint": {}},
    {"workers": 1, "checkpoint": {"volume": {}}},
    *({"workers": 1, "checkpoint": {"volume": _VOLUME, "path": path}} for path in (".", "././", "/", "a/..")),
    *({"workers": 1, "checkpoint": {"volume": _VOLUME, "signing": signing}} for signing in _SIGNINGS),
    {"workers": 1, "resume": {"policy": "latest"}},
    {"workers": 1, "recovery": {"exitCodes": [{"codes": [0, 256]}]}},
    {"workers": 1, "recovery": {"maxRestarts": 3}},
    {"workers": 1, "recovery": ["x" * 100]},
)


def messages() -> str:
    rules = [f"{rule.path or '.'}\n    {rule.message}" for rule in RULES]
    changes = [f"{', '.join(each.field for each in CHANGES.fields)}\n    spec.FIELD: {CHANGES.advice}"]
    shapes = ["\n    ".join([_short(spec), *validate(spec)]) for spec in BAD]
    return "\n".join(["# Rules", *rules, "", "# Changes", *changes, "", "# Shape", *shapes, ""])


def _short(spec: Any) -> str:
    text = repr(spec)
    return text if len(text) < 80 else f"{text[:77]}..."


def test_messages_are_those_reviewed() -> None:
    assert messages() == FILE.read_text(), (
        "if it was meant: python -m tests.api.test_messages, and read the diff"
    )


@pytest.mark.parametrize("spec", BAD, ids=_short)
def test_a_bad_shape_is_reported_with_field_and_fix(spec: Any) -> None:
    messages = validate(spec)
    assert messages
    for message in messages:
        assert message.startswith("spec")
        assert ";" in message or "did you mean" in message, "says what to change"
        assert len(message) < 400


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.message[:40])
def test_a_rule_is_reported_with_field_and_fix(rule: Rule) -> None:
    assert rule.message.startswith(("spec.", "metadata.name"))
    assert ";" in rule.message
    assert len(rule.message) < 250
    assert "\n" not in rule.cel + rule.message, "the server refuses a line break in either"


if __name__ == "__main__":
    FILE.write_text(messages())
