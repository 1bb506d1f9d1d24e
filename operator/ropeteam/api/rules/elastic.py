"""Rules about spec.elastic: workers that are not there at the begin can join later only under sync Exact."""

from __future__ import annotations

from typing import Any

from ropeteam.api.rule import Rule, Spec, at, spec_with

_CHECKPOINT: Spec = {"volume": {"persistentVolumeClaim": {"claimName": "checkpoints"}}}


def _elastic(workers: int = 1, least: int = 1, sync: str = "Exact", **spec: Any) -> Spec:
    """An example."""
    parts = {
        "checkpoint": _CHECKPOINT,
        "strategy": {"sync": {"type": sync}},
        "elastic": {"minWorkers": least},
    }
    return spec_with(workers=workers, **{**parts, **spec})


def _can_join_later(spec: Spec) -> bool:
    is_exact = at(spec, "strategy.sync.type") == "Exact" and at(spec, "strategy.parallelism.pipeline") == 1
    return "elastic" not in spec or (is_exact and "checkpoint" in spec)


ELASTIC_RULES = (
    Rule(
        path="spec",
        cel="!has(self.elastic) || self.elastic.minWorkers <= self.workers",
        holds=lambda spec: "elastic" not in spec or spec["elastic"]["minWorkers"] <= spec["workers"],
        message="spec.elastic.minWorkers: is above spec.workers, the most that there can be; lower it",
        valid=_elastic(workers=2, least=2),
        invalid=_elastic(workers=2, least=3),
    ),
    Rule(
        path="spec",
        cel=(
            "!has(self.elastic) || (has(self.checkpoint) && has(self.strategy) && "
            "self.strategy.sync.type == 'Exact' && self.strategy.parallelism.pipeline == 1)"
        ),
        holds=_can_join_later,
        message=(
            "spec.elastic: workers can join later only with spec.strategy.sync.type Exact, spec.checkpoint, "
            "and no pipeline; set these, or remove it"
        ),
        valid=_elastic(),
        invalid=_elastic(sync="AllReduce"),
    ),
    Rule(
        path="spec",
        cel="!has(self.elastic) || self.launcher != 'PerPod'",
        holds=lambda spec: "elastic" not in spec or spec["launcher"] != "PerPod",
        message="spec.launcher: with PerPod a command waits for all pods; use PerRank, or no spec.elastic",
        valid=_elastic(launcher="PerRank"),
        invalid=_elastic(launcher="PerPod"),
    ),
)
