"""Requests to parameter servers and their answers, as JSON headers of messages (wire.py). Pure.

    request         answer                           payload of the request -> of the answer

    of a worker, to the chief:
    Register        Registered                       -> the worker's own state
    RequestStep     PushDecision or SkipDecision
    ReportStep      Done                             the worker's own state ->
    Deregister      Done
    of a worker, to each server:
    PushGradient    Weights                          gradients -> weights
    PullWeights     Weights                          -> weights
    of the chief, to the other servers:
    FetchGeneration Generation
    FetchShare      Done                             -> parameters and optimizer state
    ReplaceShare    Done                             parameters and optimizer state ->
    SendProgress    Done
    EndServing      Done

The answer to any request may be a Failure. Pods of two releases may share a job: neither the keys nor the
`do` of a request may change, and a new key needs a default.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, TypeVar

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.codec import DecodeError
from ropeteam_trainer.contract.errors import ProtocolError

A = TypeVar("A")


class ServerRefused(ProtocolError, RuntimeError):
    """A server has answered a request with a Failure. Repeating it would not help."""


@dataclass(frozen=True)
class Failure:
    """The request was refused; the server closes the connection."""

    error: str


@dataclass(frozen=True)
class Done:
    pass


@dataclass(frozen=True)
class Registered:
    clock: int
    """Gradients of this worker that are done."""
    generation: str | None = None


@dataclass(frozen=True)
class PushDecision:
    """Permission to push gradient `push`. A step is the mean of `of` gradients."""

    push: int
    of: int


@dataclass(frozen=True)
class SkipDecision:
    """The step is closed: continue with step `skip`."""

    skip: int


@dataclass(frozen=True)
class Weights:
    version: int
    """Steps done."""


@dataclass(frozen=True)
class Generation:
    generation: str | None
    """None: the server has only the script's initial weights."""


@dataclass(frozen=True)
class Request(Generic[A]):
    """Request whose answer is an A. do: its name in JSON. answers: the possible types of its answer."""

    do: ClassVar[str]
    answers: ClassVar[tuple[type, ...]] = (Done,)


@dataclass(frozen=True)
class FromWorker(Request[A]):
    """world_id: of two processes of one worker, that of the older world is refused."""

    worker: int
    world_id: tuple[int, ...] = field(metadata={codec.JSON_NAME: "epoch"})


@dataclass(frozen=True)
class Register(FromWorker[Registered]):
    do = "hello"
    answers = (Registered,)


@dataclass(frozen=True)
class ReportStep(FromWorker[Done]):
    """All servers have applied the gradients below `clock`, or they were skipped."""

    do = "done"
    clock: int


@dataclass(frozen=True)
class Deregister(FromWorker[Done]):
    """The script has ended."""

    do = "leave"


@dataclass(frozen=True)
class RequestStep(FromWorker[PushDecision | SkipDecision]):
    """Request to push gradient `n`."""

    do = "ask"
    answers = (SkipDecision, PushDecision)
    n: int


@dataclass(frozen=True)
class PushGradient(FromWorker[Weights]):
    do = "push"
    answers = (Weights,)
    n: int
    of: int
    values: tuple[dict[str, Any], ...]
    """Hyperparameters of each group of the worker's optimizer: numbers, lists of numbers, or null."""
    version: int
    """Steps done when the weights of this gradient were pulled."""
    lacking: tuple[int, ...]
    """Indexes of the server's parameters without a gradient; their bytes are zero."""

    def __post_init__(self) -> None:
        if self.of < 1:
            raise ValueError(f"a step of {self.of} gradients")
        for group in self.values:
            for name, value in group.items():
                each = value if isinstance(value, list | tuple) else (value,)
                if name == "params" or not all(isinstance(one, int | float | None) for one in each):
                    raise ValueError(f"hyperparameter {name[:80]!r} is not a number")


@dataclass(frozen=True)
class PullWeights(Request[Weights]):
    do = "pull"
    answers = (Weights,)


@dataclass(frozen=True)
class FetchGeneration(Request[Generation]):
    do = "state"
    answers = (Generation,)


@dataclass(frozen=True)
class FetchShare(Request[Done]):
    do = "content"


@dataclass(frozen=True)
class ReplaceShare(Request[Done]):
    """Begin a new generation with the content in the payload."""

    do = "take"
    generation: str


@dataclass(frozen=True)
class SendProgress(Request[Done]):
    do = "progress"
    step: int
    drained: bool


@dataclass(frozen=True)
class EndServing(Request[Done]):
    """All workers have left."""

    do = "end"


_KINDS: dict[str, type[Request[Any]]] = {
    kind.do: kind
    for kind in (
        *(Register, ReportStep, Deregister, RequestStep, PushGradient, PullWeights),
        *(FetchGeneration, FetchShare, ReplaceShare, SendProgress, EndServing),
    )
}


def encode(message: Any) -> bytes:
    """A request, or an answer. Not codec.encode(): a script's hyperparameters may be infinite."""
    kind = {"do": message.do} if isinstance(message, Request) else {}
    values = {codec.json_name(each): getattr(message, each.name) for each in fields(message)}
    return json.dumps({**kind, **values}).encode()


def parse(head: bytes) -> Request[Any]:
    """A request. Raises DecodeError."""
    plain = _object(head)
    do = plain.get("do")
    if not isinstance(do, str) or do not in _KINDS:
        raise DecodeError(f"unknown request {do[:80]!r}" if isinstance(do, str) else "no request")
    return codec.from_plain(_KINDS[do], plain)


def parse_answer(request: Request[A], head: bytes) -> A:
    """The answer to a request. Raises ServerRefused, and DecodeError."""
    plain = _object(head)
    if "error" in plain:
        raise ServerRefused(codec.from_plain(Failure, plain).error)
    kinds = (kind for kind in request.answers if plain.keys() >= {*map(codec.json_name, fields(kind))})
    answer: A = codec.from_plain(next(kinds, request.answers[-1]), plain)
    return answer


def _object(head: bytes) -> dict[str, Any]:
    try:
        plain = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not JSON: {error}") from None
    if not isinstance(plain, dict):
        raise DecodeError("not a JSON object")
    return plain
