"""Findings of `ropeteam doctor`: their type, and those of the machine that it runs on.

Objects that were read go in, findings come out, in the order of dependence. An object that a person may not
read is not known, which is a warning: it may be as it should. Findings of a cluster: clusterchecks.py; of
namespaces and jobs: namespacechecks.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ropeteam.api.rule import at

Object = dict[str, Any]


class Level(StrEnum):
    """Level of a finding, as it is printed."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Finding:
    """One line of the output: an object, its state, and what to do."""

    level: Level
    what: str
    """Kind and name of the object, as `claim data`."""
    why: str
    """State of the object, on the line behind `what` and a colon."""
    todo: str = ""
    """Next step; empty: nothing is to be done."""

    def __str__(self) -> str:
        line = f"{self.level:4} {self.what}: {' '.join(self.why.split())}"
        return f"{line.rstrip('.')}; {self.todo}" if self.todo else line


@dataclass(frozen=True)
class Read:
    """Answer of the API server to one request: one object is a list of one, a missing object an empty
    list."""

    items: tuple[Object, ...] = ()
    unknown: str = ""
    """Reason why there is no answer, for people. Empty: there is one."""
    served: bool = True
    """Whether the server has this kind."""


@dataclass(frozen=True)
class Machine:
    """State of the machine that the command runs on."""

    python: str
    """Version, as those of `ropeteam` and `torch`."""
    ropeteam: str
    torch: str
    """Version; empty: it is not installed."""
    kubectl: str
    """Version and path; empty: there is none on PATH."""
    linux: bool
    home: str
    """State folder of the local cluster."""
    recorded: bool
    """Whether that folder has a kubeconfig."""
    answers: bool
    """Whether the cluster of that kubeconfig answers."""
    pods: int
    """Number of pods' folders in `home`."""


def ok_finding(what: str, why: str, todo: str = "") -> Finding:
    return Finding(Level.OK, what, why, todo)


def warn_finding(what: str, why: str, todo: str = "") -> Finding:
    return Finding(Level.WARN, what, why, todo)


def fail_finding(what: str, why: str, todo: str = "") -> Finding:
    return Finding(Level.FAIL, what, why, todo)


def unknown_finding(what: str, read: Read) -> Finding:
    """Finding about an object that could not be read: a warning, since it may be as it should."""
    return warn_finding(what, f"not known: {read.unknown}")


def name_of(obj: Object) -> str:
    return str(at(obj, "metadata.name"))


def machine_findings(seen: Machine) -> Iterator[Finding]:
    """Findings of the machine: programs that commands need, then the local cluster."""
    yield ok_finding("python", f"{seen.python}, with ropeteam {seen.ropeteam}")
    yield ok_finding(
        "torch", seen.torch or "not installed: a client only, which is enough for jobs on a cluster"
    )
    if seen.kubectl:
        yield ok_finding("kubectl", seen.kubectl)
    else:
        yield warn_finding(
            "kubectl", "not found on PATH", "install it: ropeteam has no command to list or delete"
        )
    yield _local_cluster_finding(seen)


def _local_cluster_finding(seen: Machine) -> Finding:
    """Finding about the cluster of `ropeteam up`. It is no fault that none runs, but files that a killed one
    has left are: commands use its kubeconfig."""
    what = "local cluster"
    if not seen.linux:
        return warn_finding(
            what, "`ropeteam run` and `ropeteam up` need Linux", "use a container or a cluster"
        )
    limits = "resources.limits.memory is not enforced there"
    if seen.answers:
        return ok_finding(what, f"runs in {seen.home}; {limits}")
    if seen.recorded or seen.pods:
        left = [f"{seen.home}/kubeconfig"] if seen.recorded else []
        left += [f"{seen.pods} folders in {seen.home}/pods"] if seen.pods else []
        return warn_finding(
            what,
            f"does not answer, and was not shut down cleanly: {' and '.join(left)} remain",
            "`ropeteam up` removes them; until then commands without --kubeconfig connect there",
        )
    return ok_finding(what, f"none runs in {seen.home}; `ropeteam up` starts one; {limits}")
