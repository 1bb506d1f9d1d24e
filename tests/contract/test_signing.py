"""Signed requests and answers: nothing but what was signed passes, once, and as the answer to its request."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeteam_trainer.contract.signing import CHALLENGE_SECONDS, NONCE_SIZE, Client, Keys, Server, covers

KEYS = Keys(b"t" * 32, "uid", 1)
PUT, GET = "PUT /desired", "GET /status"
NONCE = b"n" * NONCE_SIZE
OTHERS = [Keys(b"u" * 32, "uid", 1), Keys(b"t" * 32, "diu", 1), Keys(b"t" * 32, "uid", 2)]


def acquainted(keys: Keys = KEYS) -> tuple[Client, Server]:
    """Both sides have exchanged messages before."""
    caller, gate = Client(keys), Server(keys, Random(1).randbytes)
    signature = caller.sign(PUT, b"", NONCE)
    assert not gate.admit(PUT, signature, 0.0), "it names no challenge yet"
    assert caller.is_genuine(signature, 401, gate.sign(signature, 401, b"no", 0.0), b"no")
    return caller, gate


def test_what_is_signed_is_admitted_once_and_each_answer_brings_the_next_challenge() -> None:
    caller, gate = acquainted()
    for _ in range(3):
        signature = caller.sign(PUT, b"x", NONCE)
        assert gate.admit(PUT, signature, 0.0)
        assert covers(signature, b"x")
        assert not covers(signature, b"y")
        assert not gate.admit(PUT, signature, 0.0)
        assert caller.is_genuine(signature, 200, gate.sign(signature, 200, b"ok", 0.0), b"ok")


def test_who_only_reads_uses_nothing_up() -> None:
    caller, gate = acquainted()
    reads = caller.sign(GET, b"", NONCE)
    assert gate.admit(GET, reads, 0.0)
    assert gate.admit(GET, reads, 0.0)
    assert gate.admit(PUT, caller.sign(PUT, b"", NONCE), 0.0)
    assert not gate.admit(GET, reads, 0.0)


def test_a_challenge_is_refused_once_it_has_expired() -> None:
    caller, gate = acquainted()
    signature = caller.sign(PUT, b"", NONCE)
    assert not gate.admit(PUT, signature, CHALLENGE_SECONDS)
    caller, gate = acquainted()
    assert gate.admit(PUT, caller.sign(PUT, b"", NONCE), CHALLENGE_SECONDS - 1)


def test_no_challenge_is_needed_until_the_first_request_or_for_a_minute() -> None:
    first = Client(KEYS).sign(PUT, b"", NONCE)
    gate = Server(KEYS, Random(1).randbytes, 5.0)
    assert [gate.admit(PUT, first, 6.0) for _ in range(2)] == [True, False]
    assert not Server(KEYS, Random(1).randbytes, 5.0).admit(PUT, first, 5.0 + CHALLENGE_SECONDS)


@pytest.mark.parametrize("other", OTHERS)
def test_another_key_job_or_term_is_neither_admitted_nor_genuine(other: Keys) -> None:
    caller, gate = acquainted()
    theirs = Client(other)
    theirs._challenge = caller._challenge
    assert not gate.admit(PUT, theirs.sign(PUT, b"", NONCE), 0.0)
    signature = caller.sign(PUT, b"", NONCE)
    if other.token != KEYS.token:
        assert not caller.is_genuine(
            signature, 200, Server(other, Random(1).randbytes).sign(signature, 200, b"", 0.0), b""
        )
    assert gate.admit(PUT, signature, 0.0)


@given(at=st.integers(0), bit=st.integers(0, 6))
def test_an_altered_signature_is_not_admitted(at: int, bit: int) -> None:
    caller, gate = acquainted()
    signature = bytearray(caller.sign(PUT, b"", NONCE).encode())
    signature[at % len(signature)] ^= 1 << bit
    assert not gate.admit(PUT, signature.decode(), 0.0)


def test_a_signature_is_for_one_method_and_path() -> None:
    caller, gate = acquainted()
    for what in ("GET /desired", "PUT /status", "PUT /", GET):
        assert not gate.admit(what, caller.sign(PUT, b"", NONCE), 0.0)


@given(at=st.integers(0), bit=st.integers(0, 6), which=st.sampled_from(("given", "body", "signature")))
def test_an_altered_answer_is_not_accepted(at: int, bit: int, which: str) -> None:
    caller, gate = acquainted()
    signature = caller.sign(PUT, b"", NONCE)
    signed = {"given": gate.sign(signature, 200, b"yes", 0.0), "body": "yes", "signature": signature}
    altered = bytearray(signed[which].encode())
    altered[at % len(altered)] ^= 1 << bit
    signed[which] = altered.decode()
    assert not caller.is_genuine(signed["signature"], 200, signed["given"], signed["body"].encode())


def test_an_answer_is_to_one_request_and_of_one_status() -> None:
    caller, gate = acquainted()
    first, second = caller.sign(PUT, b"x", NONCE), caller.sign(PUT, b"x", b"m" * NONCE_SIZE)
    answer = gate.sign(first, 200, b"yes", 0.0)
    assert not caller.is_genuine(second, 200, answer, b"yes")
    assert not caller.is_genuine(first, 201, answer, b"yes")
    assert not caller.is_genuine(second, 200, first, b"yes"), "nor is a request sent back one"
    assert caller.is_genuine(first, 200, answer, b"yes")


@given(noise=st.text(max_size=250))
def test_noise_is_no_signature(noise: str) -> None:
    caller, gate = acquainted()
    assert not gate.admit(PUT, noise, 0.0)
    assert gate.sign(noise, 401, b"", 0.0) == ""
    assert not caller.is_genuine(caller.sign(PUT, b"", NONCE), 200, noise, b"")


def test_no_secret_is_shown() -> None:
    assert "tttt" not in repr(KEYS)
    assert KEYS.token.hex() not in Client(KEYS).sign(PUT, b"", NONCE)


def test_what_is_signed_as_a_request_is_no_answer() -> None:
    keys = Keys(b"t" * 32, "7", 1)
    assert keys.request_mac("w", "x") != keys.response_mac("w", 7, "1", b"x"), "the same text under both"
