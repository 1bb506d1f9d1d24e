"""Progress of Hugging Face's Trainer, for scripts that do not know us. agent/script/hooks.py adds it to them.

After each step the heartbeat page gets the step and the samples; the socket the total and, whenever the
Trainer logs it, the loss. It says no hello: to the agent the script stays on rung 0. So nobody expects a
first step of it within startSeconds, pauses it, or forks it, and its checkpoints stay its own.
The hang clock runs from the begin of a step to its end. Between steps the Trainer evaluates, saves and calls
other callbacks for as long as they like; a rank that is stuck there is noticed by the peers that wait for it.
Promise: the first error is told in one line on stderr, and ends the reports, not the training.
Limit: samples are the nominal ones of a full batch.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerState, TrainingArguments

from ropeteam_trainer.contract import config
from ropeteam_trainer.contract.local import FromRank
from ropeteam_trainer.rank import agentlink

Event = Callable[..., None]


def _harmless(event: Event) -> Event:
    @functools.wraps(event)
    def tried(
        self: ReportProgress, args: TrainingArguments, state: TrainerState, _: object, **more: Any
    ) -> None:
        if self.broken or _script_reports():
            return
        try:
            event(self, args, state, **more)
        except Exception as error:
            self.broken = True
            print(f"ropeteam: progress is told no more: {error!r}. Training goes on.", file=sys.stderr)

    return tried


class ReportProgress(TrainerCallback):
    """One for each Trainer; all of a process share its page and socket."""

    broken = False

    @_harmless
    def on_train_begin(self, _: TrainingArguments, state: TrainerState, **__: Any) -> None:
        heart, link = _agent()
        heart.step = state.global_step
        if link is not None:
            link.send(FromRank(total_steps=state.max_steps))

    @_harmless
    def on_step_begin(self, *_: Any, **__: Any) -> None:
        heart, _link = _agent()
        heart.phase = "train"
        heart.beat()

    @_harmless
    def on_step_end(self, args: TrainingArguments, state: TrainerState, **_: Any) -> None:
        heart, _link = _agent()
        heart.step, heart.steps_here = state.global_step, heart.steps_here + 1
        heart.samples += args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        heart.phase = ""
        heart.beat()

    @_harmless
    def on_log(self, *_: Any, logs: dict[str, float] | None = None, **__: Any) -> None:
        _heart, link = _agent()
        if link is not None and logs and "loss" in logs:
            link.offer_loss(logs["loss"])


@functools.cache
def _agent() -> tuple[agentlink.Heartbeat, agentlink.AgentLink | None]:
    """This process's lines to its agent."""
    link = agentlink.connect(os.environ, rank=None)
    if link is not None:
        atexit.register(link.close)  # sends the last loss
    return agentlink.Heartbeat(os.environ.get(config.RANK_PAGE)), link


def _script_reports() -> bool:
    """It has called ropeteam_trainer.init(): then its own reports count."""
    joining = sys.modules.get("ropeteam_trainer.joining")
    return joining is not None and joining._job is not None
