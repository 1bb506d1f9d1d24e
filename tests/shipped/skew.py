"""Releases side by side: processes that talk as those of contract version OLDEST do.

None of them says or understands what that version did not have: nonces of agents, leases and short answers,
parts of plans and manifests, signatures, fields. A pod is of the release of the operator that made it; an
upgrade replaces operators only.
Limits: their words are former, the code behind them is today's; what they write to status and into pods is,
too, but for the contract that a pod gets. recovery.selfFence needs an operator of today.
"""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import orjson
from tests.shipped.loop import OWNER, Process

from ropeteam.controller.client import coordinator as operators_end
from ropeteam.controller.reconcile import exchange
from ropeteam_trainer.agent import link
from ropeteam_trainer.contract import OLDEST, VERSION, codec, grantchunks, signing, wire
from ropeteam_trainer.contract.messages import AgentReport, Orders, parse_lease_answer
from ropeteam_trainer.coordinator import agentconnection
from ropeteam_trainer.coordinator.http import Http
from ropeteam_trainer.system.http import HttpError, Request

_NEW_IN_DESIRED = ("boot", "heard")
_NEW_IN_JOB_REPORT = ("stalled", "newer_term", "sent", "leased")
_NEW_IN_REPORT = ("number", "disk_owes", "superseded")
_NEW_IN_ORDERS = ("answers", "same")
_accepts_answer, _greeting = wire.accepts_answer, wire.greeting


def _is_previous() -> bool:
    owner = OWNER.get()
    return owner is not None and owner.previous


def _accepts_answer_of_its_release(nonce: bytes) -> bool:
    return _accepts_answer(nonce) and not _is_previous()


def _greeting_of_its_release(chance: bytes) -> bytes:
    return wire.HELLO + chance if _is_previous() else _greeting(chance)


def sent(process: Process, desired: bytes) -> bytes:
    """Messages of an operator to a coordinator."""
    return _without(desired, _NEW_IN_DESIRED) if process.previous else desired


def made(obj: Any) -> Any:
    """Objects that an operator creates: a coordinator's pod gets the contract that it speaks."""
    text, ours, theirs = orjson.dumps(obj), f'contract\\":{VERSION}', f'contract\\":{OLDEST}'
    return orjson.loads(text.replace(ours.encode(), theirs.encode()))


def _auth_for(keys: signing.Keys, contract: int) -> operators_end.RequestAuth:
    return operators_end.auth_for(keys, OLDEST if _is_previous() else contract)


def received(process: Process, report: bytes) -> bytes:
    return _without(report, _NEW_IN_JOB_REPORT) if process.previous else report


def _without(text: bytes, names: tuple[str, ...]) -> bytes:
    plain: dict[str, Any] = orjson.loads(text)
    return orjson.dumps({name: value for name, value in plain.items() if name not in names})


# ---- agents


def _encode(report: AgentReport) -> bytes:
    text = codec.encode(report)
    return _without(text, _NEW_IN_REPORT) if _is_previous() else text


def _decode(cls: type[Orders], text: bytes) -> Orders:
    if not _is_previous():
        return codec.decode(cls, text)
    try:
        plain = orjson.loads(text)
    except ValueError as error:
        raise codec.DecodeError(f"not JSON: {error}") from None
    if plan := plain.get("plan"):
        plan.pop("whole", None)
    return codec.decode(cls, _without(orjson.dumps(plain), _NEW_IN_ORDERS))


_link: dict[str, Any] = {
    "codec": SimpleNamespace(encode=_encode, decode=_decode, DecodeError=codec.DecodeError),
    "parse_lease_answer": lambda body: None if _is_previous() else parse_lease_answer(body),
    "grantchunks": SimpleNamespace(
        parse_part=lambda body: None if _is_previous() else grantchunks.parse_part(body),
        with_part=grantchunks.with_part,
        with_files=grantchunks.with_files,
    ),
}

# ---- coordinators


class _Reader(codec.Reader[AgentReport]):
    def decode(self, data: bytes) -> AgentReport:
        if not _is_previous():
            return super().decode(data)
        report = super().decode(_without(data, _NEW_IN_REPORT))
        if report.contract > OLDEST:
            raise codec.DecodeError(f"contract {report.contract} is unknown")
        return report


def _authenticate(http: Http, request: Request) -> bool:
    if not _is_previous():
        return _authenticated(http, request)
    if not http._has_bearer(request):
        raise HttpError(401, "a bearer of this job is needed")
    return False


_authenticated = Http._authenticate
_codec = SimpleNamespace(
    Reader=_Reader, encode=codec.encode, decode=codec.decode, DecodeError=codec.DecodeError
)


def _replace(module: ModuleType, **new: Any) -> None:
    """Replace names that are there: another name would be without effect."""
    missing = new.keys() - vars(module).keys()
    assert not missing, f"{module.__name__} has no {missing}"
    vars(module).update(new)


_replace(exchange, auth_for=_auth_for)
type.__setattr__(Http, "_authenticate", _authenticate)
_replace(wire, accepts_answer=_accepts_answer_of_its_release, greeting=_greeting_of_its_release)
_replace(link, **_link)
_replace(agentconnection, codec=_codec)
