"""Frames on the wire: whatever is not exactly what the peer sealed, at its place, is refused."""

from __future__ import annotations

import hashlib
import hmac
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ropeteam_trainer.contract.wire import (
    ACCEPTS_ANSWER,
    ANSWER,
    HELLO,
    MAX_BODY,
    NONCE_SIZE,
    TO_AGENT,
    TO_COORDINATOR,
    Opener,
    Sealer,
    WireError,
    accepts_answer,
    expects_empty_frame,
    greeting,
    http_bearer,
    job_token,
    parse_answer,
    session_key,
)

TOKEN, NONCE = b"t" * 32, b"n" * NONCE_SIZE
HEAD = 4 + 32
BODIES = st.lists(st.binary(max_size=40), min_size=1, max_size=5)


def sealed(
    bodies: list[bytes], token: bytes = TOKEN, nonce: bytes = NONCE, direction: bytes = TO_AGENT
) -> list[bytes]:
    sealer = Sealer(token, nonce, direction)
    return [sealer.seal(body) for body in bodies]


def opened(
    stream: bytes, token: bytes = TOKEN, nonce: bytes = NONCE, direction: bytes = TO_AGENT
) -> list[bytes]:
    return list(Opener(token, nonce, direction).feed(stream))


@given(bodies=BODIES, splits=st.lists(st.integers(0, 400)))
def test_bodies_arrive_whole_and_in_order_however_the_stream_is_split(
    bodies: list[bytes], splits: list[int]
) -> None:
    stream = b"".join(sealed(bodies))
    edges = [0, *sorted(min(split, len(stream)) for split in splits), len(stream)]
    opener = Opener(TOKEN, NONCE, TO_AGENT)
    got = [body for begin, end in pairwise(edges) for body in opener.feed(stream[begin:end])]
    assert got == bodies


@given(bodies=BODIES, where=st.integers(0), bit=st.integers(0, 7))
def test_an_altered_bit_is_never_taken_for_a_message(bodies: list[bytes], where: int, bit: int) -> None:
    stream = bytearray(b"".join(sealed(bodies)))
    stream[where % len(stream)] ^= 1 << bit
    got: list[bytes] = []
    with suppress(WireError):
        got.extend(Opener(TOKEN, NONCE, TO_AGENT).feed(bytes(stream)))
    assert got == bodies[: len(got)], "only frames before the altered one may pass"
    assert len(got) < len(bodies)


@given(bodies=BODIES, data=st.data())
def test_replayed_dropped_or_reordered_frames_are_refused(bodies: list[bytes], data: st.DataObject) -> None:
    frames = sealed(bodies)
    order = data.draw(st.lists(st.integers(0, len(frames) - 1), min_size=1, max_size=6))
    honest = order == list(range(len(order)))
    assume(not honest)
    with pytest.raises(WireError, match="wrong MAC"):
        opened(b"".join(frames[index] for index in order))


@given(body=st.binary(max_size=40), token=st.binary(min_size=1, max_size=40))
def test_a_frame_of_another_token_is_refused(body: bytes, token: bytes) -> None:
    assume(token.rstrip(b"\0") != TOKEN.rstrip(b"\0"))
    (frame,) = sealed([body], token=token)
    with pytest.raises(WireError, match="another job's token"):
        opened(frame)


def test_a_frame_of_another_connection_is_refused() -> None:
    (frame,) = sealed([b"x"], nonce=b"m" * NONCE_SIZE)
    with pytest.raises(WireError, match="replayed"):
        opened(frame)


@given(mine=st.binary(min_size=16, max_size=16), body=st.binary(max_size=40))
def test_a_frame_for_another_nonce_of_the_agent_is_refused(mine: bytes, body: bytes) -> None:
    assume(mine != b"a" * NONCE_SIZE)
    (frame,) = sealed([body], token=session_key(TOKEN, b"a" * NONCE_SIZE))
    for key in (session_key(TOKEN, mine), TOKEN):
        with pytest.raises(WireError, match="replayed"):
            opened(frame, token=key)


def test_a_greeting_expects_an_answer_and_looks_to_older_agents_as_before() -> None:
    ours, older = greeting(NONCE), HELLO + NONCE
    assert len(ours) == len(older)
    assert ours.startswith(HELLO)
    assert accepts_answer(ours[len(HELLO) :])
    assert expects_empty_frame(ours[len(HELLO) :])
    assert not expects_empty_frame(ACCEPTS_ANSWER + NONCE)
    assert not accepts_answer(older[len(HELLO) :])


@given(frame=st.binary(max_size=60), split=st.integers(0, 80))
def test_an_answer_gives_the_key_as_soon_as_it_is_whole(frame: bytes, split: int) -> None:
    stream = ANSWER + NONCE + frame
    expected = (session_key(TOKEN, NONCE), stream[len(ANSWER + NONCE) : split])
    assert parse_answer(TOKEN, stream[:split]) == (expected if split >= len(ANSWER + NONCE) else None)


def test_an_older_agent_begins_with_a_frame_under_the_token() -> None:
    (frame,) = sealed([b"x"], direction=TO_COORDINATOR)
    assert parse_answer(TOKEN, frame) == (TOKEN, frame)
    assert parse_answer(TOKEN, frame[:1]) == (TOKEN, frame[:1])
    assert int.from_bytes(ANSWER[:4], "big") > MAX_BODY, "no frame begins like an answer"


def test_a_frame_sent_back_to_its_sender_is_refused() -> None:
    (frame,) = sealed([b"x"], direction=TO_AGENT)
    with pytest.raises(WireError, match="wrong MAC"):
        opened(frame, direction=TO_COORDINATOR)


@given(noise=st.binary(min_size=HEAD, max_size=200))
def test_noise_is_never_taken_for_a_message(noise: bytes) -> None:
    with suppress(WireError):
        assert opened(noise) == []


def test_an_oversized_body_is_not_sent() -> None:
    assert len(sealed([b"x" * MAX_BODY])[0]) == HEAD + MAX_BODY
    with pytest.raises(WireError, match=f"message of {MAX_BODY + 1} bytes is over the limit of {MAX_BODY}"):
        sealed([b"x" * (MAX_BODY + 1)])


def test_a_body_that_was_not_sent_takes_no_number() -> None:
    sealer = Sealer(TOKEN, NONCE, TO_AGENT)
    with pytest.raises(WireError):
        sealer.seal(b"x" * (MAX_BODY + 1))
    assert opened(sealer.seal(b"next")) == [b"next"]


def test_an_oversized_frame_is_refused_at_its_first_four_bytes() -> None:
    with pytest.raises(WireError, match=f"announces too many bytes, the limit is {MAX_BODY}"):
        opened((MAX_BODY + 1).to_bytes(4, "big"))


def test_a_body_of_the_largest_size_arrives() -> None:
    body = b"x" * MAX_BODY
    assert opened(sealed([body])[0]) == [body]


@pytest.mark.parametrize("size", [0, 1, 3, 4, HEAD - 1, HEAD + 1])
def test_a_part_of_a_frame_yields_nothing_yet(size: int) -> None:
    assert opened(sealed([b"xx"])[0][:size]) == []


def test_tokens_differ_by_job_and_key_and_a_bearer_does_not_reveal_its_token() -> None:
    tokens = {job_token(key, uid) for key in (b"k1", b"k2") for uid in ("u1", "u2")}
    assert len(tokens) == 4
    assert {len(token) for token in tokens} == {32}
    bearers = {http_bearer(token) for token in tokens}
    assert len(bearers) == 4
    assert not bearers & {token.hex() for token in tokens}


@given(st.binary(max_size=200), st.binary(max_size=40))
def test_a_mac_is_that_of_rfc_2104(key: bytes, body: bytes):
    sealer = Sealer(key, NONCE, TO_AGENT)
    for number in range(2):
        text = NONCE + TO_AGENT + number.to_bytes(8, "big") + body
        assert sealer.seal(body)[4:HEAD] == hmac.new(key, text, hashlib.sha256).digest()
