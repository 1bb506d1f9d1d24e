"""Texts from people, and from a checkpoint volume that others can write.

`yaml`: manifests through `ropeteam validate`: good, or refused with a sentence; of a good one pods can be
made.
`checkpoints`: manifests of checkpoints. `journals`: entries of a run's journal, which an agent walks along.
Nothing outside of the folder is opened, and what is odd is passed over.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, cast

import orjson
import yaml
from tests.builders import a_job
from tests.core.fake_cluster import FakeCluster
from tests.fuzz import mutations
from tests.fuzz.campaign import Attempt, Campaign
from tests.fuzz.specs import SPECS

from ropeteam.cli.main import cli
from ropeteam.cli.manifest.read import read_manifest
from ropeteam_trainer.checkpoint import reader
from ropeteam_trainer.checkpoint.decisions import journal
from ropeteam_trainer.checkpoint.decisions.journal import CheckpointKey, Held, JournalEntry, List, ReadEntry
from ropeteam_trainer.checkpoint.decisions.manifest import MANIFEST, METADATA, Manifest
from ropeteam_trainer.checkpoint.decisions.restore import choose
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.config import CheckpointConfig, RankPlan, Resume
from ropeteam_trainer.contract.world import CheckpointRef, ShardFile, WorldId

_BETWEEN = b"\n\n"
_HEAD = {"apiVersion": "ropeteam.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "good"}}
_YAML = (
    *(
        "&x ",
        "*x",
        "<<: ",
        "? ",
        "- ",
        "!!set ",
        "!!int ",
        "!!python/object:os.system ",
        "1:2",
        "0o17",
        ".nan",
    ),
    *(
        "2026-13-45",
        "|",
        ">-",
        "---\n",
        "%YAML 9\n",
        "{",
        "]",
        "\t",
        "#",
        "~",
        "=",
        "'",
        '"',
        "@",
        "`",
        "\x00",
    ),
    *("&a [*a]", "&x [x]\n", "\r", "\ufeff", "9" * 99, "1e99", "- " * 200, "[" * 200),
)


def draw_yaml(chance: Random) -> bytes:
    plain = mutations.bent(chance, _HEAD | {"spec": chance.choice(SPECS)}, loose=0.3)
    if chance.random() < 0.4:
        return mutations.written(plain)  # JSON is YAML
    text = yaml.safe_dump(plain, allow_unicode=chance.random() < 0.5, default_flow_style=None)
    for _ in range(chance.choice((0, 0, 1, 3))):
        place = chance.randrange(len(text) + 1)
        text = text[:place] + chance.choice(_YAML) + text[place + chance.choice((0, 0, 5)) :]
    data = text.encode(errors="surrogatepass")
    return mutations.damaged(chance, data) if chance.random() < 0.1 else data


def _validated(file: Path, screen: io.StringIO) -> tuple[object, str]:
    """Exit code and output of `ropeteam validate`. All cases have one screen: click keeps every stream for
    ever that it has written to."""
    screen.seek(0)
    screen.truncate()
    with redirect_stdout(screen), redirect_stderr(screen):
        try:
            cli.main(["validate", str(file)])
        except SystemExit as end:
            return end.code or 0, screen.getvalue()
    raise AssertionError("it returned")


@asynccontextmanager
async def _yaml() -> AsyncIterator[Attempt]:
    with tempfile.TemporaryDirectory() as name:
        file, screen = Path(name) / "job.yaml", io.StringIO()

        async def attempt(case: bytes) -> list[str]:
            file.write_bytes(case)
            code, output = _validated(file, screen)
            assert code in (0, 2)
            assert output.startswith("error: ") or "is valid" in output
            if code == 0:
                _made(read_manifest(file).job)
            return ["good" if code == 0 else "refused"]

        yield attempt


def _made(job: dict[str, Any]) -> None:
    """The job's pods, as they would be sent to an API server."""
    if job["spec"].get("workers", 0) > 8:
        return
    fake = FakeCluster(a_job().but(spec=job["spec"]))
    for _ in range(6):
        for action in fake.round().actions:
            orjson.dumps(getattr(action, "manifest", None))
        fake.kubelets()


class Opened:
    """Files opened in a block, but for plain names and those of a folder."""

    def __init__(self, folder: Path) -> None:
        self._inside, self._watching = str(folder), False
        self._strange = list[str]()
        sys.addaudithook(self._look)  # which stays for the life of the process

    def _look(self, event: str, args: tuple[Any, ...]) -> None:
        if self._watching and event == "open" and isinstance(args[0], str):
            path = args[0]
            if path == ".." or ("/" in path and not path.startswith(self._inside)):
                self._strange.append(path)

    def __enter__(self) -> None:
        self._watching = True

    def __exit__(self, *_: object) -> None:
        self._watching = False
        assert not self._strange, f"opened {self._strange}"


@cache
def saved() -> dict[str, Any]:
    files = tuple(
        ShardFile(name, 1, "f" * 64) for name in (METADATA, "__0_0.distcp", "state.pt", "rank-0.pt")
    )
    parent = CheckpointRef(3, WorldId(1, 0, 1), "d" * 64, "run")
    plain: dict[str, Any] = codec.to_plain(Manifest(5, WorldId(1, 0, 2), 1, "job", "", files, parent))
    return plain


def draw_checkpoint(chance: Random) -> bytes:
    plain = mutations.bent(
        chance, saved(), lambda path: path[0] in ("step", "epoch") and chance.random() < 0.8
    )
    text = mutations.written(plain)
    return mutations.damaged(chance, text) if chance.random() < 0.2 else text


@asynccontextmanager
async def _checkpoints() -> AsyncIterator[Attempt]:
    with tempfile.TemporaryDirectory() as name:
        directory, nothing_else_opened = Path(name), Opened(Path(name))
        place = directory / "step-5" / "1.0.2"
        place.mkdir(parents=True)
        plan = RankPlan("1.0.3", (), False, CheckpointConfig(name), Resume.LATEST, None, "job", "")

        async def attempt(case: bytes) -> list[str]:
            (place / MANIFEST).write_bytes(case)
            looks = list[str]()
            with nothing_else_opened:
                choice = choose(
                    plan,
                    reader.find_checkpoints(directory),
                    lambda ref: reader.inspect_manifest(directory, ref),
                )
                if choice.manifest and choice.ref:
                    files = choice.manifest.files[:50]
                    looks = [
                        reader.check_file(directory, choice.ref, each, lambda _: None).fault for each in files
                    ]
            "".join(choice.skipped).encode()
            assert choice.manifest is None or any(looks), "it names files that are not there"
            return ["files to be looked at" if looks else "passed over"]

        yield attempt


PLACES = tuple(CheckpointKey(WorldId(1, 0, n), 10 * n) for n in range(1, 7))


def draw_journal(chance: Random) -> bytes:
    """Entries whose parents are any of them, and one of which is odd."""
    entries: dict[str, Any] = {}
    for place in PLACES:
        above = chance.choice((None, *PLACES))
        parent = above and CheckpointRef(
            above.step, above.world_id, chance.choice(("", "d", f"d{above.step}"))
        )
        entry = JournalEntry(
            CheckpointRef(place.step, place.world_id, chance.choice(("d", f"d{place.step}"))), parent
        )
        entries[f"{place}.{chance.choice(('commit', 'pruned', 'pruning-1.0.9-p'))}"] = codec.to_plain(entry)
    entries = mutations.bent(chance, entries, loose=0.2)
    return _BETWEEN.join(
        part
        for name, entry in entries.items()
        for part in (name.encode(errors="replace"), mutations.written(entry))
    )


@asynccontextmanager
async def _journals() -> AsyncIterator[Attempt]:
    held = Held(journal.Claim(WorldId(1, 0, 9), "pod"), frozenset(PLACES))
    refs = tuple(CheckpointRef(place.step, place.world_id, f"d{place.step}") for place in PLACES)

    async def attempt(case: bytes) -> list[str]:
        texts_in_case = [text.decode() for text in case.split(_BETWEEN)]
        texts = dict(zip(texts_in_case[::2], texts_in_case[1::2], strict=False))
        for walk in (journal.lineage(held, refs[:2]), journal.lineage(held, ()), journal.ancestors(refs)):
            count, answer = 0, cast(Any, None)
            try:
                while True:
                    request, count = walk.send(answer), count + 1
                    assert count < 1000, "it goes round in circles"
                    match request:
                        case List():
                            answer = list(texts)
                        case ReadEntry(name):
                            answer = texts.get(name, "")
            except StopIteration:
                pass
        return ["walked along"]

    yield attempt


CAMPAIGNS = (
    Campaign("yaml", "manifests", 100_000, draw_yaml, _yaml),
    Campaign("checkpoints", "manifests", 100_000, draw_checkpoint, _checkpoints),
    Campaign("journals", "journals", 100_000, draw_journal, _journals),
)
