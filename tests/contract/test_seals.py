"""Signatures of what is written into checkpoint folders."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ropeteam_trainer.contract import seals
from ropeteam_trainer.contract.seals import folder_key, holds, of_run, signed

OLD, NEW = folder_key(b"old", "folder"), folder_key(b"new", "folder")
TEXT = b'{"step":1,"note":"a \\",\\"signature\\":\\" in a text"}'
SIGNED = signed("manifest", TEXT, (NEW, OLD))


def test_the_first_key_signs_and_any_is_accepted() -> None:
    assert signed("manifest", TEXT, (NEW,)) == SIGNED
    assert holds("manifest", SIGNED, (OLD, NEW))
    assert not holds("manifest", SIGNED, (OLD,))
    assert not holds("manifest", SIGNED, ())


def test_who_knows_of_no_signatures_reads_the_same() -> None:
    assert json.loads(SIGNED) == json.loads(TEXT) | {"signature": json.loads(SIGNED)["signature"]}


def test_without_keys_nothing_is_signed() -> None:
    assert signed("manifest", TEXT, ()) == TEXT
    assert not holds("manifest", TEXT, (NEW,))


def test_signed_as_something_else_it_does_not_hold() -> None:
    assert not holds("journal", SIGNED, (NEW,))


@given(st.integers(0, len(SIGNED) - 1), st.integers(1, 255))
def test_whatever_byte_is_altered_it_does_not_hold(at: int, by: int) -> None:
    altered = bytearray(SIGNED)
    altered[at] ^= by
    assert not holds("manifest", bytes(altered), (NEW,))


@given(st.binary(max_size=8))
def test_nothing_may_be_cut_off_or_added(more: bytes) -> None:
    assert not holds("manifest", SIGNED[: -1 - len(more)], (NEW,))
    assert holds("manifest", SIGNED + more, (NEW,)) == (more == b"")
    assert not holds("manifest", more, (NEW,))


def test_keys_differ_by_operator_folder_and_run() -> None:
    keys = {folder_key(key, folder) for key in (b"1", b"2") for folder in ("a", "b")}
    assert len(keys | {*of_run((OLD,), "r"), *of_run((OLD,), "s"), *of_run((NEW,), "r")}) == 7


def test_a_pod_reads_what_the_operator_has_written(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(seals.to_text((NEW, OLD)))
    assert seals.read(str(tmp_path / "keys")) == (NEW, OLD)
    assert seals.read("") == ()
