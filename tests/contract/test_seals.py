"""Signatures of what is written into checkpoint folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeteam_trainer.contract import seals
from ropeteam_trainer.contract.seals import folder_key, is_valid, run_keys, signed

OLD, NEW = folder_key(b"old", "folder"), folder_key(b"new", "folder")
TEXT = b'{"step":1,"note":"a \\",\\"signature\\":\\" in a text"}'
SIGNED = signed("manifest", TEXT, (NEW, OLD))


def test_the_first_key_signs_and_any_is_accepted() -> None:
    assert signed("manifest", TEXT, (NEW,)) == SIGNED
    assert is_valid("manifest", SIGNED, (OLD, NEW))
    assert not is_valid("manifest", SIGNED, (OLD,))
    assert not is_valid("manifest", SIGNED, ())


def test_who_knows_of_no_signatures_reads_the_same() -> None:
    assert json.loads(SIGNED) == json.loads(TEXT) | {"signature": json.loads(SIGNED)["signature"]}


def test_without_keys_nothing_is_signed() -> None:
    assert signed("manifest", TEXT, ()) == TEXT
    assert not is_valid("manifest", TEXT, (NEW,))


def test_signed_as_something_else_it_does_not_hold() -> None:
    assert not is_valid("journal", SIGNED, (NEW,))


@given(st.integers(0, len(SIGNED) - 1), st.integers(1, 255))
def test_whatever_byte_is_altered_it_does_not_hold(at: int, by: int) -> None:
    altered = bytearray(SIGNED)
    altered[at] ^= by
    assert not is_valid("manifest", bytes(altered), (NEW,))


@given(st.binary(max_size=8))
def test_nothing_may_be_removed_or_added(more: bytes) -> None:
    assert not is_valid("manifest", SIGNED[: -1 - len(more)], (NEW,))
    assert is_valid("manifest", SIGNED + more, (NEW,)) == (more == b"")
    assert not is_valid("manifest", more, (NEW,))


def test_keys_differ_by_operator_folder_and_run() -> None:
    keys = {folder_key(key, folder) for key in (b"1", b"2") for folder in ("a", "b")}
    assert len(keys | {*run_keys((OLD,), "r"), *run_keys((OLD,), "s"), *run_keys((NEW,), "r")}) == 7


def test_a_pod_reads_what_the_operator_has_written(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(seals.keys_text((NEW, OLD)))
    assert seals.read_keys(str(tmp_path / "keys")) == (NEW, OLD)
    assert seals.read_keys("") == ()


A, B = "a1" * 32, "B2" * 40


def named(folder: Path, text: str) -> seals.Keys:
    """Keys of a Secret with this entry."""
    (folder / seals.FILE).write_text(text, newline="")
    return seals.read_secret_keys(str(folder / seals.FILE))


@pytest.mark.parametrize("text", [f"{A}\n{B}", f"\n {A} \r\n\n{B}\r\n", f"{A.upper()}\n{B.lower()}\n"])
def test_a_secret_has_one_key_a_line_the_first_signs(tmp_path: Path, text: str) -> None:
    """However an editor or kubectl has written it."""
    one, other = named(tmp_path, A), named(tmp_path, B)
    assert len(named(tmp_path, text)) == 2
    assert named(tmp_path, text) == one + other
    assert seals.read_secret_keys("") == ()


def test_a_named_key_is_no_other_key(tmp_path: Path) -> None:
    """Though it has the bytes of one: of the operator's, or of a folder's."""
    folder = '["lab", {}, "mnist"]'
    known = {bytes.fromhex(A), folder_key(bytes.fromhex(A), folder), *run_keys((bytes.fromhex(A),), "r")}
    assert not known & {*named(tmp_path, A)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "entry checkpoint-keys is empty"),
        (" \r\n\n", "entry checkpoint-keys is empty"),
        (A[:62], "line 1 of its entry checkpoint-keys is not a key"),
        (A + "f", "line 1 "),
        (f"{A}\n\ncorrect horse battery staple", "line 3 "),
        (f"{A} {B}", "line 1 "),
        (f"{A}\n#{B}", "line 2 "),
        (f"\ufeff{A}", "line 1 "),
        (f"{A}\n\udcff".encode("utf-8", "surrogateescape").decode("latin-1"), "line 2 "),
    ],
)
def test_a_line_that_is_no_key_is_reported_and_not_shown(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(
        ValueError, match=r"spec\.checkpoint\.signing\.secretName.*openssl rand -hex 32"
    ) as error:
        named(tmp_path, text)
    assert expected in str(error.value)
    assert not [key for key in text.split() if len(key) > 4 and key in str(error.value)]


def test_a_secret_without_the_entry_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no entry checkpoint-keys; .*openssl rand -hex 32"):
        seals.read_secret_keys(str(tmp_path / seals.FILE))
