"""The shard cache among real processes: one fetches, whole or not at all, bounded, whichever process is
killed."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from lab.ranks.processes import SCRIPTS

from ropeteam_trainer.data import cache as module
from ropeteam_trainer.data.cache import ShardCache

SCRIPT = SCRIPTS / "cached.py"
SIZE = 10_000


class Reader:
    """A process of scripts/cached.py."""

    def __init__(self, directory: Path, max_bytes: int, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(directory), str(max_bytes), *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.answer() == "ready"

    def send(self, *command: object) -> None:
        print(*command, file=self.process.stdin, flush=True)

    def answer(self) -> str:
        return self.process.stdout.readline().strip()

    def request(self, *command: object) -> str:
        self.send(*command)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self) -> str:
        """Text on stderr."""
        return self.process.communicate(timeout=60)[1]


Start = Callable[..., Reader]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a reader of the test's cache; all are killed at the end."""
    readers = []

    def one(max_bytes: int = 10 * SIZE, *options: str) -> Reader:
        readers.append(Reader(tmp_path / "cache", max_bytes, *options))
        return readers[-1]

    yield one
    for reader in readers:
        reader.kill()


def source(tmp_path: Path, number: int, size: int = SIZE) -> Path:
    path = tmp_path / f"source-{number}"
    path.write_bytes(random.Random(number).randbytes(size))
    return path


def content(path: Path) -> str:
    read = path.read_bytes()
    return f"{len(read)} {sum(read)}"


def copies(tmp_path: Path, what: str = "*.shard") -> list[Path]:
    return sorted((tmp_path / "cache").glob(what))


def test_what_is_cached_needs_its_source_no_more(tmp_path: Path) -> None:
    cache, path = ShardCache(tmp_path / "cache", 10 * SIZE), source(tmp_path, 1)
    expected = path.read_bytes()
    with cache.open(path, version="7") as file:
        assert file.read() == expected
    path.unlink()
    with cache.open(path, version="7") as file:
        assert file.read() == expected
    with cache.path(path, version="7") as name:
        assert name.read_bytes() == expected
    with pytest.raises(FileNotFoundError):
        cache.open(path, version="8")
    assert len(copies(tmp_path)) == 1
    assert copies(tmp_path, "*.part") == []


def test_the_cache_of_a_training_job_is_in_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROPETEAM_SHARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ROPETEAM_SHARD_CACHE_BYTES", str(2 * SIZE))
    cache = ShardCache()
    for number in range(3):
        cache.open(source(tmp_path, number)).close()
    assert len(copies(tmp_path)) == 2
    with ShardCache(tmp_path / "own").path(source(tmp_path, 1)) as name:
        assert name.parent == tmp_path / "own", "what the script says counts"


@pytest.mark.parametrize("given", [(), ("/tmp/shards",), (None, 100)])
def test_a_cache_without_a_directory_or_a_size_is_refused_with_the_fix(given: Any) -> None:
    with pytest.raises(
        ValueError, match=r"needs a directory and max_bytes; in a TrainingJob spec\.shardCache"
    ):
        ShardCache(*given)


def test_a_source_that_has_changed_is_fetched_again(tmp_path: Path) -> None:
    cache, path = ShardCache(tmp_path / "cache", 10 * SIZE), source(tmp_path, 1)
    cache.open(path).close()
    path.write_bytes(b"new")
    with cache.open(path) as file:
        assert file.read() == b"new"


def test_what_has_come_while_we_waited_for_the_lock_is_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, path = ShardCache(tmp_path / "cache", 10 * SIZE), source(tmp_path, 1)
    cache.open(path, "1").close()
    path.unlink()
    looks = iter([lambda _path: None, module._open_locked])
    monkeypatch.setattr(module, "_open_locked", lambda path: next(looks)(path))
    cache.open(path, "1").close()
    assert len(copies(tmp_path, "*")) == 2, "the copy, and the lock of the directory"


def test_an_empty_file_is_a_file(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "cache", SIZE)
    with cache.open(source(tmp_path, 1, 0)) as file:
        assert file.read() == b""


def test_of_many_processes_one_fetches(tmp_path: Path, start: Start) -> None:
    path, log = source(tmp_path, 1), tmp_path / "log"
    readers = [start(10 * SIZE, "--log", str(log)) for _ in range(4)]
    for reader in readers:
        reader.send("open", path)
    assert [reader.answer() for reader in readers] == [content(path)] * 4
    assert len(log.read_text().splitlines()) == 1
    assert len(copies(tmp_path, "*")) == 2, "the copy, and the lock of the directory"


@pytest.mark.parametrize("written", [0, 3_000, SIZE])
def test_a_fetcher_that_is_killed_leaves_nothing_that_is_taken_for_whole(
    tmp_path: Path, start: Start, written: int
) -> None:
    path = source(tmp_path, 1)
    victim, waiting = start(10 * SIZE, "--stop-after", str(written)), start()
    assert victim.request("open", path) == "stopped"
    waiting.send("open", path)
    assert copies(tmp_path) == []
    victim.kill()
    assert waiting.answer() == content(path)
    assert copies(tmp_path, "*.part") == []


def test_leftovers_of_the_killed_are_cleaned_up_and_those_of_the_living_are_not(
    tmp_path: Path, start: Start
) -> None:
    victim, busy = (start(10 * SIZE, "--stop-after", "3000") for _ in range(2))
    for number, reader in enumerate((victim, busy)):
        assert reader.request("open", source(tmp_path, number)) == "stopped"
    victim.kill()
    assert len(copies(tmp_path, "*.part")) == 2
    assert start().request("open", path := source(tmp_path, 2)) == content(path)
    assert len(copies(tmp_path, "*.part")) == 1


def test_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "cache", 3 * SIZE)
    paths = [source(tmp_path, number) for number in range(4)]
    for number in (0, 1, 2, 0, 3):
        cache.open(paths[number], version="1").close()
    for number in (0, 2, 3):
        paths[number].unlink()
        cache.open(paths[number], version="1").close()
    paths[1].unlink()
    with pytest.raises(FileNotFoundError):
        cache.open(paths[1], version="1")


def test_a_file_that_is_open_is_not_removed(tmp_path: Path, start: Start) -> None:
    """All room is taken by two files that are open: a third is read from its place, with one message."""
    holder, other = start(2 * SIZE), start(2 * SIZE)
    held = [source(tmp_path, number) for number in range(2)]
    for path in held:
        assert holder.request("open", path) == content(path)
    names = copies(tmp_path)
    for number in (2, 3):
        assert other.request("open", path := source(tmp_path, number)) == content(path)
    assert copies(tmp_path) == names
    assert holder.request("close") == "closed"
    assert other.request("open", path := source(tmp_path, 4)) == content(path)
    assert len(set(copies(tmp_path)) - set(names)) == 1
    ended = other.end()
    assert ended.count("has no space for a shard of 10000 bytes: its limit is ") == 1
    assert ended.count("and the shards that it has are in use. The file is read from its source; later") == 1


def test_a_full_disk_costs_a_message_and_nothing_else(tmp_path: Path, start: Start) -> None:
    small, large = source(tmp_path, 1, 2_000), [source(tmp_path, number) for number in (2, 3)]
    log = tmp_path / "log"
    reader = start(10 * SIZE, "--file-limit", "4000", "--log", str(log))
    for path in (small, *large, small):
        assert reader.request("open", path) == content(path)
    assert len(log.read_text().splitlines()) == 2, "after the failure none is tried"
    assert len(copies(tmp_path)) == 1
    assert copies(tmp_path, "*.part") == []
    errors = reader.end()
    assert errors.count("ropeteam: ") == 1
    assert "cannot be used: [Errno 27] File too large" in errors


def test_a_missing_source_is_the_scripts_error(tmp_path: Path, start: Start) -> None:
    reader = start()
    assert reader.request("open", tmp_path / "nothing", "v") == "FileNotFoundError"
    assert reader.request("open", tmp_path, "v") == "IsADirectoryError"
    assert copies(tmp_path, "*.part") == []
    assert reader.request("open", path := source(tmp_path, 1)) == content(path), "and it caches on"
    assert len(copies(tmp_path)) == 1


def test_path_gives_the_name_of_the_copy(tmp_path: Path, start: Start) -> None:
    assert start().request("name", source(tmp_path, 1)) == "True True"


def test_a_source_that_changes_while_it_is_copied_is_not_cached(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = source(tmp_path, 1)

    class Meanwhile(ShardCache):
        def _free_space(self, size: int, part: BinaryIO) -> None:
            super()._free_space(size, part)
            path.write_bytes(b"longer" * SIZE)

    cache = Meanwhile(tmp_path / "cache", 100 * SIZE)
    with cache.open(path) as file:
        assert file.read() == b"longer" * SIZE
    assert copies(tmp_path) == []
    assert "changed while it was copied" in capfd.readouterr().err


def test_a_bad_day_never_gives_a_wrong_byte_nor_too_many(tmp_path: Path, start: Start) -> None:
    """Many readers of more than fits, in changing order; now and then one is killed in the middle."""
    chance, paths = random.Random(1), [source(tmp_path, number) for number in range(8)]
    expected = {path: content(path) for path in paths}
    readers = [start(3 * SIZE) for _ in range(3)]
    for turn in range(60):
        chosen = [chance.choice(paths) for _ in readers]
        for reader, path in zip(readers, chosen, strict=True):
            reader.send("open", path)
        if turn % 12 == 11:
            readers.pop(0).kill()
            chosen.pop(0)
            readers.append(start(3 * SIZE))
        for reader, path in zip(readers, chosen, strict=False):
            assert reader.answer() == expected[path]
            assert reader.request("close") == "closed"
        assert sum(path.stat().st_size for path in copies(tmp_path, "*")) <= 3 * SIZE
