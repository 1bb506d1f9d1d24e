"""The operator's settings: flags win over `ROPETEAM_*`, those over the defaults. Read once, at the start.

The operator key is the root of all job tokens: a file that only its owner may read. Without `--key-file` it
lies in the state folder and is created at the first start; a key file given by a flag must exist. The file of
the previous keys may be missing; jobs that were created with one of them keep it.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ropeteam.api.defaults import Defaults, JobDefaults, JobPolicy
from ropeteam.api.model import ApiModel
from ropeteam.errors import CannotRun
from ropeteam_trainer.contract import seals, wire

M = TypeVar("M", bound=ApiModel)
IMAGE = "ghcr.io/ropeteam/ropeteam:0.1.0"


class SettingsError(CannotRun):
    """An invalid setting. The text names it, and what to change."""


@dataclass(frozen=True)
class OperatorKey:
    """The secret from which job tokens are derived. Never logged, never in an Observation."""

    secret: bytes

    def __repr__(self) -> str:
        return f"OperatorKey({self.id})"

    @property
    def id(self) -> str:
        """A short hash of the secret, which may be shown."""
        return hashlib.sha256(b"id:" + self.secret).hexdigest()[:8]

    def token(self, job_uid: str) -> bytes:
        """The job's token, a secret of its pods and of us."""
        return wire.job_token(self.secret, job_uid)


@dataclass(frozen=True)
class OperatorKeys:
    """The accepted keys. The first one is the current key, which new jobs get."""

    accepted: tuple[OperatorKey, ...]

    def accepts(self, key_id: str) -> bool:
        """Whether the key with this id is there."""
        return any(key.id == key_id for key in self.accepted)

    def key_or_current(self, key_id: str) -> OperatorKey:
        """The key with this id; the current key if it is not accepted, or if `key_id` is ""."""
        return next((key for key in self.accepted if key.id == key_id), self.accepted[0])

    def folder_keys(self, folder: str, key_id: str) -> seals.Keys:
        """The keys of this checkpoint folder, one derived from each accepted key. The first, from the key of
        the job, signs; checkpoints signed with any of them are accepted."""
        own = self.key_or_current(key_id)
        keys = (own, *(key for key in self.accepted if key != own))
        return tuple(seals.folder_key(key.secret, folder) for key in keys)


@dataclass(frozen=True)
class Settings:
    """The settings of one operator process."""

    kubeconfig: Path | None
    """None: the service account of the pod we run in."""
    home: Path
    """State folder: the operator key, and the address of the probes."""
    key_file: Path | None
    """None: `<home>/operator.key`, created if it is missing."""
    previous_key_file: Path | None
    """Previous keys, one a line, that are accepted too. The file may be missing. None:
    `<home>/operator.key.previous`."""
    namespaces: tuple[str, ...]
    """Empty: all."""
    image: str
    """Image of coordinators."""
    image_pull_policy: str
    """Of coordinators. Empty: Kubernetes' default."""
    job_defaults: JobDefaults
    """Defaults for the pods of all jobs."""
    job_policy: JobPolicy | None
    """Peers that may connect to jobs. None: jobs get no NetworkPolicy."""
    lease: str
    """namespace/name of the Lease for leader election. Empty: there is no other operator."""
    lease_seconds: int
    """For how long the lease is valid without a renewal."""
    max_concurrent_reconciles: int
    """MaxConcurrentReconciles of controller-runtime."""
    deletion_proves_end: bool
    """Whether a node whose object is gone counts as a node on which nothing runs any more."""
    probe_address: str
    """host:port of /healthz, /readyz and /metrics; port 0: any free one, written to
    `<home>/operator.address`.
    """
    log_level: str
    """Name of a level of `logging`, in capitals."""
    wait_for_stdin: bool
    """Wait for a line on stdin after all imports: the parent process prepares other things meanwhile."""

    @property
    def defaults(self) -> Defaults:
        """The settings that `core` may read; `agent_secret` is added later (assembly.py)."""
        return Defaults(
            operator_image=self.image,
            image_pull_policy=self.image_pull_policy,
            jobs=self.job_defaults,
            policy=self.job_policy,
        )

    def write_probe_address(self, address: str) -> None:
        """Write the address of the probes to `<home>/operator.address`, for callers that set port 0. Raises
        OSError."""
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "operator.address").write_text(address + "\n")


def default_home(environ: Mapping[str, str]) -> Path:
    """The state folder of the local cluster and its operator."""
    return Path(environ.get("ROPETEAM_HOME") or Path.home() / ".local" / "state" / "ropeteam")


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    """The parser. Each flag with a value is an environment variable, too: --key-file is ROPETEAM_KEY_FILE."""
    parser = argparse.ArgumentParser(
        prog="python -m ropeteam.controller", description="The Ropeteam operator."
    )

    def setting(name: str, default: str, text: str) -> None:
        """Add a flag. Its environment variable, if set, is the default that argparse uses."""
        value = environ.get("ROPETEAM_" + name.upper().replace("-", "_"), default)
        parser.add_argument(f"--{name}", default=value, help=f"{text} (default: {default or 'none'})")

    setting("kubeconfig", "", "kubeconfig of the API server; without it: in-cluster config")
    setting("home", str(default_home(environ)), "folder for the operator's key, if it makes one, and address")
    setting("key-file", "", "file with the operator key; without it: <home>/operator.key, made at the start")
    setting(
        "previous-key-file",
        "",
        "file with previous operator keys, one a line; without it: <home>/operator.key.previous",
    )
    setting(
        "namespaces", "", "reconcile jobs of these namespaces only (a,b,c), with permissions in no others"
    )
    setting("image", IMAGE, "image of coordinator pods")
    setting("image-pull-policy", "", "imagePullPolicy of coordinator pods")
    setting("job-defaults", "", "JSON file with defaults for the pods of all jobs")
    setting("job-policy", "", "JSON file with the peers that may reach jobs; without it: no NetworkPolicy")
    setting("lease", "", "reconcile only while holding this Lease, namespace/name; without it: always")
    setting("lease-seconds", "15", "another operator takes over when the lease was not renewed for so long")
    setting("max-concurrent-reconciles", "32", "maximum number of concurrent reconciles")
    setting("probe-address", "127.0.0.1:0", "where to serve /healthz, /readyz and /metrics")
    setting("log-level", "INFO", "lowest level of the lines in the log: DEBUG, INFO, WARNING or ERROR")
    setting("deleted-nodes", "unknown", "`ended` if nothing runs any more on a node whose object is deleted")
    parser.add_argument("--wait-for-stdin", action="store_true", help="start when a line arrives on stdin")
    return parser


def read(arguments: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """The settings from flags and environment, in `--job-defaults` and `--job-policy` also from files. Raises
    SystemExit (2), with usage and error on stderr, for an unknown flag or a value that is not valid.
    """
    parser = _parser(environ)
    given = parser.parse_args(arguments)
    if given.deleted_nodes not in ("unknown", "ended"):
        parser.error(f"--deleted-nodes {given.deleted_nodes}: must be unknown or ended")
    for name in ("max-concurrent-reconciles", "lease-seconds"):
        value = getattr(given, name.replace("-", "_"))
        if not value.isdecimal() or int(value) < 1:
            parser.error(f"--{name} {value}: must be a whole number, 1 or more")
    if not isinstance(logging.getLevelName(given.log_level.upper()), int):
        parser.error(f"--log-level {given.log_level}: must be DEBUG, INFO, WARNING or ERROR")
    port = given.probe_address.rpartition(":")[2]
    if not port.isdecimal() or int(port) > 65535:
        parser.error(f"--probe-address {given.probe_address}: must be host:port, such as :8080")
    if given.lease and given.lease.count("/") != 1:
        parser.error(f"--lease {given.lease}: must be namespace/name, such as ropeteam-system/ropeteam")
    return Settings(
        kubeconfig=Path(given.kubeconfig) if given.kubeconfig else None,
        home=Path(given.home),
        key_file=Path(given.key_file) if given.key_file else None,
        previous_key_file=Path(given.previous_key_file) if given.previous_key_file else None,
        namespaces=tuple(name for name in given.namespaces.split(",") if name),
        image=given.image,
        image_pull_policy=given.image_pull_policy,
        job_defaults=_read_json(parser, "job-defaults", given.job_defaults, JobDefaults) or JobDefaults(),
        job_policy=_read_json(parser, "job-policy", given.job_policy, JobPolicy),
        lease=given.lease,
        lease_seconds=int(given.lease_seconds),
        max_concurrent_reconciles=int(given.max_concurrent_reconciles),
        deletion_proves_end=given.deleted_nodes == "ended",
        probe_address=given.probe_address,
        log_level=given.log_level.upper(),
        wait_for_stdin=given.wait_for_stdin,
    )


def _read_json(parser: argparse.ArgumentParser, flag: str, file: str, shape: type[M]) -> M | None:
    """The value in a JSON file that a flag names. None: the flag is not set. Raises SystemExit (2)."""
    if not file:
        return None
    try:
        return shape.model_validate_json(Path(file).read_bytes())
    except (OSError, ValueError) as error:
        parser.error(f"--{flag} {file}: {error}")


def load_keys(settings: Settings) -> OperatorKeys:
    """Read the operator keys; creates the key file in the state folder, if that is used and has none. Raises
    SettingsError for a file that cannot be read, or has no key; OSError if it cannot be created."""
    file = settings.key_file or settings.home / "operator.key"
    if settings.key_file is None:
        _create_key_file(file)
    previous = settings.previous_key_file or settings.home / "operator.key.previous"
    lines = _read_key_file(previous).split() if previous.exists() else []
    return OperatorKeys(
        (_parse_key(file, _read_key_file(file)), *(_parse_key(previous, line) for line in lines))
    )


def _read_key_file(file: Path) -> str:
    """The file's text. Raises SettingsError."""
    try:
        return file.read_text()
    except (OSError, ValueError) as error:
        raise SettingsError(f"cannot read the operator key {file}: {error}") from None


def _parse_key(file: Path, text: str) -> OperatorKey:
    """The key in `text`, a line of `file`. Raises SettingsError."""
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError as error:
        raise SettingsError(
            f"the operator key {file} is not hexadecimal ({error}); make one: openssl rand -hex 32"
        ) from None
    if len(secret) < 32:
        raise SettingsError(
            f"the operator key {file} is shorter than 32 bytes; make one: openssl rand -hex 32"
        )
    return OperatorKey(secret)


def _create_key_file(file: Path) -> None:
    """Create the key file, unless it exists, readable for its owner only. Raises OSError.

    It appears with its whole content (a link to a finished file): of several operators that start at the same
    time the first one wins, and the others read its key.
    """
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.touch(mode=0o600)
    draft.write_text(secrets.token_hex(32) + "\n")
    try:
        os.link(draft, file)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
