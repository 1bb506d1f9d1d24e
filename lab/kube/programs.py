"""The programs of a real cluster: found in a folder, in a cache, or built from Go modules.

    python -m lab.kube.programs [PROGRAM ...]    find or build these, or what tests need; print the folder

Looked for in $ROPETEAM_CLUSTER_TOOLS, else in ~/.cache/ropeteam/cluster-tools/<Kubernetes version>, else
built there, and later only those whose version or flags have changed: 20 minutes on 2 cores (Prometheus
alone: 6), with Go, and for runc gcc and libseccomp's headers. Sources come from the Go module proxy, checked
against Go's checksum database. Limits: a folder that is given is trusted, whatever its versions.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KUBERNETES = os.environ.get("ROPETEAM_KUBERNETES", "1.36.3")
STATIC = {"CGO_ENABLED": "0"}


@dataclass(frozen=True)
class Source:
    """Programs that one Go module gives. `programs`: the name that the harness uses -> package; of several
    the last part is the name.
    """

    module: str
    version: str
    programs: dict[str, str]
    flags: tuple[str, ...] = ()
    ldflags: str = ""
    cgo: bool = False
    staging: str = ""
    """Modules that its go.mod requires at v0.0.0 live beside it and are published with this version."""

    @property
    def key(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()[:12]


_MINOR = KUBERNETES.split(".")[1]
_VERSION_PACKAGE = "-X k8s.io/component-base/version"
SOURCES = (
    Source(
        "k8s.io/kubernetes",
        f"v{KUBERNETES}",
        {
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in (
                "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl",
                "kubelet",
            )
        },
        ldflags=f"{_VERSION_PACKAGE}.gitVersion=v{KUBERNETES} {_VERSION_PACKAGE}.gitMajor=1"
        f" {_VERSION_PACKAGE}.gitMinor={_MINOR}",
        staging=f"v0.{KUBERNETES.partition('.')[2]}",
    ),
    Source("go.etcd.io/etcd/server/v3", "v3.6.16", {"etcd": "go.etcd.io/etcd/server/v3"}),
    Source(
        "github.com/containerd/containerd/v2",
        "v2.4.2",
        {
            name: f"github.com/containerd/containerd/v2/cmd/{name}"
            for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        },
    ),
    Source(
        "github.com/opencontainers/runc",
        "v1.5.2",
        {"runc": "github.com/opencontainers/runc"},
        flags=("-tags", "seccomp"),
        ldflags="-X main.version=1.5.2",
        cgo=True,
    ),
    Source("github.com/coredns/coredns", "v1.15.0", {"coredns": "github.com/coredns/coredns"}),
    Source("helm.sh/helm/v4", "v4.3.1", {"helm": "helm.sh/helm/v4/cmd/helm"}),
    Source(
        "github.com/cloudnativelabs/kube-router/v2",
        "v2.1.0",
        {"kube-router": "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"},
    ),
    Source("sigs.k8s.io/kwok", "v0.8.0", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
    Source(
        "github.com/rhysd/actionlint", "v1.7.12", {"actionlint": "github.com/rhysd/actionlint/cmd/actionlint"}
    ),
    Source(
        "github.com/distribution/distribution/v3",
        "v3.1.2",
        {"registry": "github.com/distribution/distribution/v3/cmd/registry"},
    ),
    Source(
        "github.com/prometheus/prometheus",
        "v0.313.5",
        {name: f"github.com/prometheus/prometheus/cmd/{name}" for name in ("prometheus", "promtool")},
        # Of its discoveries we need Kubernetes'; the others bring every cloud's library.
        flags=("-tags", "netgo,remove_all_sd,enable_kubernetes_sd"),
    ),
)  # fmt: skip
_ON_DEMAND = ("kwok", "actionlint", "kube-router", "registry")
PROGRAMS = tuple(name for source in SOURCES for name in source.programs if name not in _ON_DEMAND)
"""Programs that a cluster needs; KWOK is for benchmarks, the others for the one test that needs each."""


class CannotBuild(Exception):
    """A program is missing, or its build failed; the message has its last output."""


def folder() -> Path:
    """Where the programs are, or will be."""
    if given := os.environ.get("ROPETEAM_CLUSTER_TOOLS"):
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "ropeteam" / "cluster-tools" / KUBERNETES


def missing(programs: Collection[str] = PROGRAMS) -> tuple[str, ...]:
    every = ((source, name) for source in SOURCES for name in source.programs)
    return tuple(name for source, name in every if name in programs and not _is_there(source, name))


def _is_there(source: Source, name: str) -> bool:
    if os.environ.get("ROPETEAM_CLUSTER_TOOLS"):
        return (folder() / name).exists()
    stamp = _stamp(name)
    return (folder() / name).exists() and stamp.exists() and stamp.read_text() == source.key


def _stamp(name: str) -> Path:
    """Says what a program was built from."""
    return folder() / f".{name}.key"


def ensure(programs: Collection[str] = PROGRAMS) -> Path:
    """The folder that holds these programs. Raises CannotBuild."""
    absent = set(missing(programs))
    if absent and os.environ.get("ROPETEAM_CLUSTER_TOOLS"):
        raise CannotBuild(f"{folder()} (ROPETEAM_CLUSTER_TOOLS) has no {', '.join(sorted(absent))}")
    wanted = [source for source in SOURCES if absent & set(source.programs)]
    if wanted:
        _check_builders(any(source.cgo for source in wanted))
        folder().mkdir(parents=True, exist_ok=True)
        with _caches(folder()) as work:
            for source in wanted:
                _build(source, work, folder())
                for name in source.programs:
                    _stamp(name).write_text(source.key)
    return folder()


def build(source: Source, place: Path, *files: str) -> None:
    """One that no cluster needs: its programs, and these files of its module, in the new folder `place`.
    Raises CannotBuild.
    """
    _check_builders(source.cgo)
    fresh = place.with_name(f"{place.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    with _caches(fresh.parent) as work:
        module = _build(source, work, fresh)
        sources = Path(_go(module, work, "list", "-m", "-f", "{{.Dir}}", source.module).strip())
        for name in files:
            shutil.copyfile(sources / name, fresh / Path(name).name)
    fresh.rename(place)


@contextmanager
def _caches(beside: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ropeteam-build-", dir=beside) as work:
        yield Path(work)
        # Modules are read-only on purpose; nobody could delete them otherwise.
        _go(Path(work), Path(work), "clean", "-modcache")


def _check_builders(needs_c: bool) -> None:
    builders = ("go", "gcc", "pkg-config") if needs_c else ("go",)
    absent = [name for name in builders if not shutil.which(name)]
    if needs_c and not absent and subprocess.run(["pkg-config", "--exists", "libseccomp"]).returncode:
        absent = ["libseccomp-dev"]
    if absent:
        raise CannotBuild(
            f"to build the cluster's programs {', '.join(absent)} is needed (Debian: apt-get install golang"
            " gcc pkg-config libseccomp-dev), or a folder with the programs in ROPETEAM_CLUSTER_TOOLS"
        )


def _build(source: Source, work: Path, place: Path) -> Path:
    """The module that required it."""
    print(f"building {', '.join(source.programs)} {source.version}", file=sys.stderr, flush=True)
    module = Path(tempfile.mkdtemp(dir=work))
    (module / "go.mod").write_text("module ropeteam.dev/cluster-tools\n\ngo 1.24\n")
    if source.staging:
        _replace_staging(source, module, work)
    packages = tuple(source.programs.values())
    _go(module, work, "get", *(f"{package}@{source.version}" for package in packages))
    fresh = module / "programs"
    fresh.mkdir()
    # All at once: while one is linked, which takes one core, another is compiled.
    target = f"{fresh}/" if len(packages) > 1 else str(fresh / next(iter(source.programs)))
    arguments = ("-trimpath", *source.flags, "-ldflags", f"-s -w {source.ldflags}", "-o", target)
    _go(module, work, "build", *arguments, *packages, **({} if source.cgo else STATIC))
    for name in source.programs:
        (fresh / name).rename(place / name)
    return module


def _replace_staging(source: Source, module: Path, work: Path) -> None:
    """Kubernetes cannot be required as it is: its go.mod names its own parts at a version that never was."""
    about = json.loads(_go(module, work, "mod", "download", "-json", f"{source.module}@{source.version}"))
    described = json.loads(_go(module, work, "mod", "edit", "-json", about["GoMod"]))
    parts = [each["Path"] for each in described["Require"] if each["Version"] == "v0.0.0"]
    replacements = [f"-replace={part}={part}@{source.staging}" for part in parts]
    _go(module, work, "mod", "edit", *replacements)


def _go(module: Path, work: Path, *arguments: str, **environment: str) -> str:
    """Output of go. Module and build caches are deleted with `work`: they are twenty times the programs."""
    settings = {
        "GOMODCACHE": str(work / "mod"),
        "GOCACHE": str(work / "cache"),
        "GOFLAGS": "-buildvcs=false",
        "GOGC": "400",  # less garbage collection in the compiler: a tenth less time
    }
    argv, environment = ["go", *arguments], os.environ | settings | environment
    done = subprocess.run(argv, cwd=module, env=environment, text=True, capture_output=True)
    if done.returncode:
        raise CannotBuild(f"go {' '.join(arguments[:2])} failed:\n{done.stderr[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    try:
        print(ensure(sys.argv[1:] or PROGRAMS))
    except CannotBuild as problem:
        sys.exit(str(problem))
