"""Hugging Face's Trainer as its documentation shows it, on a small model that is made from a config."""

import sys
import time
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

folder, steps = sys.argv[1], int(sys.argv[2])


class PrintStep(TrainerCallback):
    """Print each step for the test; step 30 lasts until the test has looked."""

    def on_train_begin(self, args, state, control, **kwargs):
        print("begins after", state.global_step, "of", args.world_size, flush=True)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 30:
            print("at step 30", flush=True)
            while not Path(folder, "seen").exists():
                time.sleep(0.02)

    def on_save(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            print("saved step", state.global_step, flush=True)


config = LlamaConfig(
    vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
)
tokens = torch.randint(32, (1000, 8), generator=torch.Generator().manual_seed(0))
args = TrainingArguments(
    output_dir=folder,
    max_steps=steps,
    per_device_train_batch_size=2,
    save_steps=20,
    logging_steps=10,
    use_cpu=True,
    ddp_backend="gloo",
    report_to="none",
)
trainer = Trainer(
    model=LlamaForCausalLM(config),
    args=args,
    train_dataset=[{"input_ids": row, "labels": row} for row in tokens],
    callbacks=[PrintStep()],
)
trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))
