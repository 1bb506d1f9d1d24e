"""Each campaign runs, with the same cases for the same seed; and a fault in its reader is found. Some of the
faults were there once.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from tests.fuzz import campaign
from tests.fuzz.campaign import Found, case_of, play, replay
from tests.fuzz.campaigns import NAMES, named

from ropeteam.cli.manifest import manifestyaml
from ropeteam.controller import probes
from ropeteam.controller.cache import informer, parsing
from ropeteam.controller.client import boundedjson, coordinator
from ropeteam_trainer.agent import http as agent_http
from ropeteam_trainer.checkpoint.format import metadata
from ropeteam_trainer.contract import codec
from ropeteam_trainer.strategies.parameterserver import service, wire

ROOT = Path(__file__).parents[2]
Break = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_its_cases_are_the_same_for_the_same_seed(name: str) -> None:
    assert play(named(name), 1, 20).parts >= 20
    assert case_of(named(name), 1, 3) == case_of(named(name), 1, 3) != case_of(named(name), 2, 3)


def trusts_labels(patch: pytest.MonkeyPatch) -> None:
    """One label that is no number ended the operator."""
    patch.setattr(parsing, "_parse_number", lambda text, _: int(text or 0))
    patch.setattr(informer.Informer, "_record_unreadable", lambda *_: _raise())


def _raise() -> None:
    raise  # what is being handled


def reads_any_depth(patch: pytest.MonkeyPatch) -> None:
    """One job of a thousand levels blinded it."""
    patch.setattr(boundedjson, "loads", orjson.loads)
    patch.setattr(informer, "_UNREADABLE", ())


def outlines_any_depth(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(boundedjson, "truncate_depth", lambda text, _: text)


def numbers_of_any_kind(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(codec, "_read_int", int)
    forget_readers()


def forget_readers() -> None:
    codec._reader_of.cache_clear()
    codec._fields_reader.cache_clear()


def heads_are_text(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(agent_http.MetricsServer, "_answer", lambda _, head: head.decode().encode())


def probes_that_fail(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(probes, "generate_latest", lambda _: 1 / 0)


def answers_as_they_are(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(coordinator, "_printable", str)


def yaml_without_bounds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(manifestyaml, "_Loader", yaml.SafeLoader)


def unpickles(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(metadata._AllowList, "find_class", find_any)


def find_any(self: Any, module: str, name: str) -> Any:
    allowed = self._allowed.get((module, name)) or metadata._DTYPES.get(name)
    return allowed or pickle.Unpickler.find_class(self, module, name)


def demands_taints(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(parsing, "node", lambda obj: len(obj["spec"]["taints"]))
    patch.setattr(informer.Informer, "_record_unreadable", lambda *_: _raise())


def lets_in_anybody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wire, "verify_worker_and_prove", lambda *_: b"x")


def trusts_numbers_of_workers(patch: pytest.MonkeyPatch) -> None:
    """Workers that ended the server."""
    patch.setattr(service, "check_worker", lambda *_: None)


FAULTS: tuple[tuple[str, Break], ...] = (
    ("services", trusts_labels),
    ("pods", trusts_labels),
    ("nodes", demands_taints),
    ("trainingjobs", reads_any_depth),
    ("outlines", outlines_any_depth),
    ("agents", numbers_of_any_kind),
    ("agents-live", numbers_of_any_kind),
    ("ranks", numbers_of_any_kind),
    ("servers", lets_in_anybody),
    ("requests", trusts_numbers_of_workers),
    ("coordinator", numbers_of_any_kind),
    ("metrics", heads_are_text),
    ("probes", probes_that_fail),
    ("answers", answers_as_they_are),
    ("yaml", yaml_without_bounds),
    ("checkpoints", numbers_of_any_kind),
    ("journals", numbers_of_any_kind),
    ("metadata", unpickles),
)


@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_it_finds_a_fault_and_its_bytes_find_it_again(
    name: str, fault: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    with pytest.raises(Found) as found:
        play(named(name), 1, 3000)
    with pytest.raises(Found):
        replay(named(name), found.value.case)
    monkeypatch.undo()
    forget_readers()
    assert replay(named(name), found.value.case)


def test_memory_that_grows_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter((50.0, 50.0 + campaign.FLAT_MIB + 1))
    monkeypatch.setattr(campaign, "memory_mib", lambda: next(sizes))
    assert not play(named("journals"), 1, 20).is_flat


def command(*argv: str) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "tools/fuzz.py", *argv]
    return subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_command_reports_what_it_did_and_refuses_what_it_does_not_know() -> None:
    done = command("nodes", "--limit", "10", "--seed", "3")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nodes: 10 objects in 10 cases, seed 3, ")
    assert "there are trainingjobs, pods" in command("no-such").stderr
