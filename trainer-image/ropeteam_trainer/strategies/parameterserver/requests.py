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
    """A server has answered a request with a Failure. Repeating the request would not help."""


@dataclass(frozen=True)
class Failure:
    """Answer to a request that the server refuses; then it closes the connection."""

    error: str


@dataclass(frozen=True)
class Done:
    """The request was carried out."""


@dataclass(frozen=True)
class Registered:
    """The worker may push."""

    clock: int
    """Gradients of this worker that are done."""
    generation: str | None = None
    """Server generation of the chief's share."""


@dataclass(frozen=True)
class PushDecision:
    """Permission to push the worker's gradient `push` to all servers. A step is the mean of `of`
    gradients."""

    push: int
    of: int


@dataclass(frozen=True)
class SkipDecision:
    """The step was decided without this gradient: drop it, and continue with step `skip`."""

    skip: int


@dataclass(frozen=True)
class Weights:
    """The payload is the server's part of the weights, in the layout of flat.py."""

    version: int
    """Steps that the server has done in this server generation."""


@dataclass(frozen=True)
class Generation:
    """Server generation of a share."""

    generation: str | None
    """None: the server has only the script's initial weights."""


@dataclass(frozen=True)
class Request(Generic[A]):
    """Request whose answer is an A."""

    do: ClassVar[str]
    """Name of the request in JSON."""
    answers: ClassVar[tuple[type, ...]] = (Done,)
    """Possible types of the answer. parse_answer() takes the first one whose fields are all there, else the
    last."""


@dataclass(frozen=True)
class FromWorker(Request[A]):
    """Request of a worker to the chief or to a server."""

    worker: int
    world_id: tuple[int, ...] = field(metadata={codec.JSON_NAME: "epoch"})
    """World of the worker's process: of two processes of one worker, the chief refuses the older one's."""


@dataclass(frozen=True)
class Register(FromWorker[Registered]):
    """Request of a worker's process to take part; the answer may take until the servers are ready."""

    do = "hello"
    answers = (Registered,)


@dataclass(frozen=True)
class ReportStep(FromWorker[Done]):
    """Report of a worker: its gradients below `clock` are done, applied by all servers or dropped."""

    do = "done"
    clock: int


@dataclass(frozen=True)
class Deregister(FromWorker[Done]):
    """Report of a worker that its script has ended."""

    do = "leave"


@dataclass(frozen=True)
class RequestStep(FromWorker[PushDecision | SkipDecision]):
    """Request for permission to push the worker's gradient `n`. The answer may take as long as other
    workers."""

    do = "ask"
    answers = (SkipDecision, PushDecision)
    n: int


@dataclass(frozen=True)
class PushGradient(FromWorker[Weights]):
    """Gradient `n` of the parameters that the server keeps, in the payload. The answer has the weights after
    its step, which may take as long as the other workers of the step."""

    do = "push"
    answers = (Weights,)
    n: int
    of: int
    """As in PushDecision."""
    values: tuple[dict[str, Any], ...]
    """Hyperparameters of each group of the worker's optimizer: numbers, lists of numbers, or null."""
    version: int
    """Steps done when the weights of this gradient were pulled."""
    missing: tuple[int, ...] = field(metadata={codec.JSON_NAME: "lacking"})
    """Indexes of the server's parameters without a gradient; their bytes are zero."""

    def __post_init__(self) -> None:
        """Raise ValueError, which parse() turns into DecodeError. No "params" among the hyperparameters: that
        would replace the optimizer's parameters."""
        if self.of < 1:
            raise ValueError(f"a step of {self.of} gradients, at least 1 is needed")
        for group in self.values:
            for name, value in group.items():
                numbers = value if isinstance(value, list | tuple) else (value,)
                if name == "params" or not all(isinstance(each, int | float | None) for each in numbers):
                    raise ValueError(f"hyperparameter {name[:80]!r} is not a number")


@dataclass(frozen=True)
class PullWeights(Request[Weights]):
    """Request for the server's weights; the answer may take until the server is ready."""

    do = "pull"
    answers = (Weights,)


@dataclass(frozen=True)
class FetchGeneration(Request[Generation]):
    """Request for the server generation of a share."""

    do = "state"
    answers = (Generation,)


@dataclass(frozen=True)
class FetchShare(Request[Done]):
    """Request for a share's parameters and optimizer state, which are the payload of the answer."""

    do = "content"


@dataclass(frozen=True)
class ReplaceShare(Request[Done]):
    """Begin the server generation `generation` with the parameters and optimizer state in the payload."""

    do = "take"
    generation: str


@dataclass(frozen=True)
class SendProgress(Request[Done]):
    """Steps that the job has done, for the servers' heartbeats."""

    do = "progress"
    step: int
    drained: bool
    """Whether the drain is complete: the step is saved, and the servers wait to be killed."""


@dataclass(frozen=True)
class EndServing(Request[Done]):
    """Stop serving: all workers have left."""

    do = "end"


_KINDS: dict[str, type[Request[Any]]] = {
    kind.do: kind
    for kind in (
        *(Register, ReportStep, Deregister, RequestStep, PushGradient, PullWeights),
        *(FetchGeneration, FetchShare, ReplaceShare, SendProgress, EndServing),
    )
}


def encode(message: Any) -> bytes:
    """Header of a request or an answer. Not by codec.encode(), which refuses infinity: hyperparameters may be
    infinite."""
    kind = {"do": message.do} if isinstance(message, Request) else {}
    values = {codec.json_name(each): getattr(message, each.name) for each in fields(message)}
    return json.dumps({**kind, **values}).encode()


def parse(header: bytes) -> Request[Any]:
    """Request in a header. Raises DecodeError."""
    plain = _object(header)
    do = plain.get("do")
    if not isinstance(do, str) or do not in _KINDS:
        raise DecodeError(
            f"unknown request {do[:80]!r}: this server runs another release than its peer"
            if isinstance(do, str)
            else "no request: the field do is missing, or no text"
        )
    return codec.from_plain(_KINDS[do], plain)


def parse_answer(request: Request[A], header: bytes) -> A:
    """Answer to the request, in a header. Raises ServerRefused for a Failure, and DecodeError."""
    plain = _object(header)
    if "error" in plain:
        failure = codec.from_plain(Failure, plain)
        raise ServerRefused(f"a parameter server refused the request {request.do!r}: {failure.error}")
    kinds = (kind for kind in request.answers if plain.keys() >= {*map(codec.json_name, fields(kind))})
    answer: A = codec.from_plain(next(kinds, request.answers[-1]), plain)
    return answer


def _object(header: bytes) -> dict[str, Any]:
    """JSON object in a header. Raises DecodeError."""
    try:
        plain = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"the header is not JSON: {error}") from None
    if not isinstance(plain, dict):
        raise DecodeError("the header is not a JSON object")
    return plain
