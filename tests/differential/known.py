"""Where the local API server answers otherwise than a real one, and why it may.

A row covers the differences at `paths` of `scenarios`; a `*` stands for anything. Each pattern of a row must
still meet a difference, so that this list stays true. Paths: `status` is the HTTP status, `body.message` what
kubectl prints.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from tests.differential.compare import Difference


@dataclass(frozen=True)
class Known:
    """Differences of one kind. `reason`: why they stay."""

    reason: str
    scenarios: tuple[str, ...]
    paths: tuple[str, ...]
    real: str = ""
    """A regular expression: what the real server answers there."""

    def covers(self, found: Difference) -> bool:
        return (
            any(_is(pattern, found.scenario) for pattern in self.scenarios)
            and any(_is(pattern, found.path) for pattern in self.paths)
            and bool(re.search(self.real, str(found.real)))
        )

    def stale(self, found: list[Difference]) -> list[str]:
        """Patterns that meet nothing any more."""
        mine = [each for each in found if self.covers(each)]
        scenarios = [p for p in self.scenarios if not any(_is(p, each.scenario) for each in mine)]
        return scenarios + [p for p in self.paths if not any(_is(p, each.path) for each in mine)]


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(r"\*", ".*"), re.DOTALL)


def _is(pattern: str, text: str) -> bool:
    return bool(_pattern(pattern).fullmatch(text))


KNOWN: tuple[Known, ...] = (
    Known(
        "It serves the kinds that the operator and `ropeteam run` need, not all of Kubernetes, and reports "
        "less about itself.",
        ("discovery//", "discovery//api*", "discovery//openapi/v3"),
        (
            "body.paths[*]",
            "body.groups[*]",
            "body.resources[*",
            "body.apiVersion",
            "body.serverAddress*",
            "kind",
        ),
    ),
    Known(
        "It calls itself what it is, with the version whose shape it follows.",
        ("discovery//version",),
        ("body.*",),
    ),
    Known(
        "A path that leads nowhere is answered with a Status, where a real server writes plain text.",
        ("nowhere//*",),
        ("kind",),
    ),
    Known(
        "What is unknown is looked for in another order: there the object first, here the place.",
        ("nowhere//apis/ropeteam.dev/v1alpha1/namespaces/*", "method/*"),
        ("body.message", "body.details.*", "status"),
    ),
    Known(
        "It speaks JSON only; nothing here requests anything else.",
        ("accept/*", "table/*as=Chair*"),
        ("kind", "status"),
    ),
    Known(
        "Texts of Go's decoder name Go's types and where its parser stood; ours name the field, or are "
        "those of Python's parser. Status and reason are the same.",
        (
            "body/*",
            "job-body/*",
            "content/patch-job *",
            "delete/broken body",
            "delete/job other kind",
            "merge/a list",
            "operations/an object",
            "page/token *",
            "pod/*",
            "secret/*",
            "config/number",
            "service/*",
            "event/*",
            "other/lease bad time",
        ),
        ("body.message",),
        real="json: |json parse error|error decoding|parsing time|continue token|unknown conversion|no kind|"
        r"Object 'Kind' is missing|quantities must",
    ),
    Known(
        "A patch that leads to no object: a real server quotes the whole object before it names what is "
        "wrong with it, ours names what is wrong.",
        ("merge/strict", "merge/config *", "watch/what was refused"),
        ("body.message", "body.details.causes[0].message"),
        real="patch: Invalid value|strict decoding error|json: cannot unmarshal",
    ),
    Known(
        "Refused pod changes: a real server adds a diff in Go's syntax.",
        ("pod-change/*",),
        ("body.message", "body.details.causes[0].message"),
    ),
    Known(
        "A selector that cannot be read: refused as there, but ours quotes it where a real server names the "
        "character at which it stopped.",
        ("label/*", "watch/bad selector"),
        ("body.message",),
        real="found '|values",
    ),
    Known(
        "An empty field selector on both sides of `=` selects everything there.", ("field/=",), ("status",)
    ),
    Known(
        "A key that JSON gives twice is not noticed: Python's parser takes the last one.",
        ("body/twice", "job-body/twice"),
        ("warnings*",),
    ),
    Known(
        "Warnings about names that work but are unwise are not given.",
        ("create/bad finalizer", "pod/name with dots"),
        ("warnings*",),
    ),
    Known("Some errors say less in their details.", ("content/patch *",), ("body.details",)),
    Known(
        "An object of another uid: a real server's message begins with its storage, then is the same.",
        ("update/another uid", "status/another uid"),
        ("body.message",),
    ),
    Known(
        "A resourceVersion that is no number: a real server calls that its own error; here a write meets a "
        "conflict and a read is a bad request.",
        ("update/garbage resourceVersion", "version/get *"),
        ("status",),
    ),
    Known(
        "The past is not kept: later pages of a list, and a list at an older version, show what is now.",
        ("page/of the past*", "version/Exact past"),
        ("body.items*",),
    ),
    Known(
        "Server-side apply is a merge: nobody owns fields, so there are no conflicts, and what a manifest no "
        "longer has stays.",
        ("apply/conflict", "apply/taken away"),
        ("status", "body.*"),
    ),
    Known(
        "Foreground and orphan deletion happen at once; a real server marks the object and leaves the work "
        "to its garbage collector.",
        ("delete/job foreground", "delete/job orphan"),
        ("kind", "status"),
    ),
    Known(
        "A claim is bound as soon as it is made, to a folder, and no finalizer protects it.",
        ("claim/*",),
        ("body.status.*", "*finalizers", "body.metadata.*", "body.items*", "status"),
    ),
    Known(
        "Rules of built-in kinds that nobody met yet: names of ports and hosts, volumes of two kinds, "
        "priority classes, TLS Secrets, equal ports, sizes of claims.",
        (
            "pod/hostname",
            "pod/port name",
            "pod/volume of two kinds",
            "pod/no such priority class",
            "secret/typed",
            "service/port twice",
            "other/claim bad size",
        ),
        ("status",),
    ),
    Known(
        "Parts of a pod that are taken as they are: sources of volumes, and its status, which only "
        "the kubelet writes.",
        ("pod/volume of unknown source", "pod-status/*", "pod/negative grace", "pod-change/toleration"),
        ("warnings*", "body.*", "status"),
    ),
    Known(
        "A null in a map of texts is dropped; Go makes an empty text of it.",
        ("config/null value",),
        ("body.data.a",),
    ),
    Known(
        "Numbers that are no integers in JSON: a real server judges them twice.",
        ("shape/several/f* for integer", "shape/several/huge integer"),
        ("status", "body.*"),
    ),
    Known("A definition has no conversion and no history of its conditions.", ("crd/*",), ("body.*",)),
    Known(
        "Columns of built-in kinds carry no descriptions; kubectl does not print them.",
        ("table/*", "initial/table", "watch/tables of *"),
        ("*columnDefinitions[*].description",),
    ),
    Known(
        "Old and rare forms of tables: v1beta1, and bookmarks as rows.",
        ("table/*v1beta1*", "initial/table"),
        ("body*apiVersion", "body[2].object.*"),
    ),
)
