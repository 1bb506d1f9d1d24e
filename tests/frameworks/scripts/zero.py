"""ZeRO of DeepSpeed, any stage, its own checkpoints. Started by `deepspeed`, which passes --local_rank."""

import argparse
import time
from pathlib import Path

import deepspeed
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, required=True)
parser.add_argument("--folder")
parser.add_argument("--steps", type=int)
parser.add_argument("--stage", type=int)
args = parser.parse_args()

config = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
    "zero_optimization": {"stage": args.stage},
}
deepspeed.init_distributed("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
path, state = engine.load_checkpoint(args.folder)
first = state["step"] if path else 0
print("begins after", first, "of", torch.distributed.get_world_size(), flush=True)
x = torch.ones(4, 4) * (1 + engine.local_rank)
for step in range(first + 1, args.steps + 1):
    loss = engine(x).square().mean()
    engine.backward(loss)
    engine.step()
    time.sleep(0.02)
    while step == 15 and not Path(args.folder, "seen").exists():
        time.sleep(0.02)  # a test kills it here
    if step % 10 == 0:
        engine.save_checkpoint(args.folder, client_state={"step": step})
        print("saved step", step, flush=True)
