"""The claims that a job names: one answer for the operator, `ropeteam doctor` and the local cluster."""

from __future__ import annotations

from typing import Any

import pytest

from ropeteam.api.claims import claims


def claim(name: Any) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": name}}


def test_each_claim_has_the_first_field_that_names_it() -> None:
    volumes = [
        {"name": "scratch", "emptyDir": {}},
        {"name": "a", **claim("words")},
        {"name": "b", **claim("ckpt")},
    ]
    spec = {"checkpoint": {"volume": claim("ckpt")}, "template": {"spec": {"volumes": volumes}}}
    assert claims(spec) == {"ckpt": "spec.checkpoint.volume", "words": "spec.template.spec.volumes[1]"}


@pytest.mark.parametrize(
    "spec",
    [
        None,
        "spec",
        {"checkpoint": "volume"},
        {"checkpoint": {"volume": claim(7)}},
        {"checkpoint": {"volume": claim("")}},
        {"template": {"spec": {"volumes": {"a": claim("b")}}}},
        {"template": {"spec": {"volumes": [None, 3, {"persistentVolumeClaim": []}]}}},
    ],
)
def test_what_is_no_volume_names_no_claim(spec: Any) -> None:
    assert claims(spec) == {}
