"""Findings of `ropeteam doctor` about a machine, and their text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ropeteam.core.doctor.findings import Machine, fail_finding, machine_findings, ok_finding

MACHINE = Machine(
    python="3.11.7",
    ropeteam="1.2.3",
    torch="2.13.0",
    kubectl="v1.36.0, /bin/kubectl",
    linux=True,
    home="/home",
    recorded=False,
    answers=False,
    pods=0,
)


def test_a_finding_is_one_line_with_what_why_and_what_to_do() -> None:
    assert str(ok_finding("python", "3.11")) == "ok   python: 3.11"
    assert (
        str(fail_finding("claim c", "does not\nexist.", "create it"))
        == "FAIL claim c: does not exist; create it"
    )


def test_a_machine_that_has_all_is_ok() -> None:
    lines = [str(found) for found in machine_findings(MACHINE)]
    assert lines[:3] == [
        "ok   python: 3.11.7, with ropeteam 1.2.3",
        "ok   torch: 2.13.0",
        "ok   kubectl: v1.36.0, /bin/kubectl",
    ]
    assert lines[3].startswith("ok   local cluster: none runs in /home; `ropeteam up` starts one")


@pytest.mark.parametrize(
    ("seen", "line"),
    [
        ({"torch": ""}, "ok   torch: not installed: a client only"),
        ({"kubectl": ""}, "warn kubectl: not found on PATH; install it"),
        ({"linux": False}, "warn local cluster: `ropeteam run` and `ropeteam up` need Linux"),
        ({"recorded": True, "answers": True}, "ok   local cluster: runs in /home"),
        ({"recorded": True}, "/home/kubeconfig remain; `ropeteam up` removes them"),
        ({"pods": 2}, "not shut down cleanly: 2 folders in /home/pods remain"),
        ({"recorded": True, "pods": 2}, "/home/kubeconfig and 2 folders in /home/pods remain"),
    ],
)
def test_what_a_machine_does_not_have_is_reported(seen, line: str) -> None:
    lines = [str(found) for found in machine_findings(replace(MACHINE, **seen))]
    assert [each for each in lines if line in each], lines
