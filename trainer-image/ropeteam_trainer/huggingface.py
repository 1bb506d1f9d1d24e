"""Progress reports of Hugging Face's Trainer, for scripts that do not use this library. Installed by
agent/script/hooks.py.

After each step the step and the samples are written to the heartbeat page; the total and, whenever the
Trainer logs it, the loss are sent over the socket. No hello is sent: to the agent the script stays on feature
level 0. So no first step is expected within startSeconds, the script is neither paused nor forked, and its
checkpoints stay its own.
Hang detection covers a step from its begin to its end. Between steps the Trainer evaluates, saves and calls
other callbacks without a time limit; a rank that is stuck there is detected by the peers that wait for it.
Guarantee: the first error is one line on stderr, and ends the reports, not the training.
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
from ropeteam_trainer.system.notice import notice

Event = Callable[..., None]


def _never_raises(event: Event) -> Event:
    """Decorator of ReportProgress's callbacks: the first error prints a line and ends all reports of this
    Trainer. Nothing is reported if the script reports by itself."""

    @functools.wraps(event)
    def guarded(
        self: ReportProgress, args: TrainingArguments, state: TrainerState, _: object, **more: Any
    ) -> None:
        if self.broken or _script_reports_itself():
            return
        try:
            event(self, args, state, **more)
        except Exception as error:
            self.broken = True
            notice(
                f"progress of transformers' Trainer is no longer reported: {error!r}. Training continues, "
                "but the job's status shows no further steps"
            )

    return guarded


class ReportProgress(TrainerCallback):
    """Callback of a Trainer, one for each; all in a process share its heartbeat page and socket."""

    broken = False
    """Whether reports have ended after an error."""

    @_never_raises
    def on_train_begin(self, _: TrainingArguments, state: TrainerState, **__: Any) -> None:
        """Report the total, and the step at which the Trainer resumes. The heartbeat is written with the
        first step."""
        heart, link = _channels_to_agent()
        heart.step = state.global_step
        link.send(FromRank(total_steps=state.max_steps))

    @_never_raises
    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Begin to watch for a hang: phase "train"."""
        heart, _link = _channels_to_agent()
        heart.phase = "train"
        heart.write()

    @_never_raises
    def on_step_end(self, args: TrainingArguments, state: TrainerState, **_: Any) -> None:
        """Report the step, and stop watching: a phase without a time limit."""
        heart, _link = _channels_to_agent()
        heart.step, heart.steps_here = state.global_step, heart.steps_here + 1
        heart.samples += args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        heart.phase = ""
        heart.write()

    @_never_raises
    def on_log(self, *_: Any, logs: dict[str, float] | None = None, **__: Any) -> None:
        """Send the loss, if the Trainer logs it."""
        _heart, link = _channels_to_agent()
        if logs and "loss" in logs:
            link.offer_loss(logs["loss"])


@functools.cache
def _channels_to_agent() -> tuple[agentlink.HeartbeatWriter, agentlink.AgentLink | agentlink.NoAgent]:
    """This process's channels to its agent, opened by the first call; no hello is sent."""
    heart = agentlink.HeartbeatWriter(os.environ.get(config.RANK_PAGE))
    link = agentlink.connect(os.environ, None, heart)
    atexit.register(link.close)  # sends the last loss
    return heart, link


def _script_reports_itself() -> bool:
    """Whether the script has called ropeteam_trainer.init(): then its own reports count."""
    joining = sys.modules.get("ropeteam_trainer.joining")
    return joining is not None and joining._job is not None
