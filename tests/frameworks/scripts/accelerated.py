"""An Accelerate script as its documentation writes them, with its own checkpoints."""

import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
accelerator = Accelerator()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-2))
newest = folder / "newest"
first = 0
if newest.exists():
    first = int(newest.read_text())
    accelerator.load_state(folder / f"step-{first}")
print("begins after", first, "of", accelerator.num_processes, flush=True)
x = torch.ones(4, 4) * (1 + accelerator.process_index)
for step in range(first + 1, steps + 1):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    time.sleep(0.02)
    while step == 15 and not (folder / "seen").exists():
        time.sleep(0.02)  # a test kills it here
    if step % 10 == 0:
        accelerator.save_state(folder / f"step-{step}")
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            draft = folder / "draft"
            draft.write_text(str(step))
            draft.rename(newest)
            print("saved step", step, flush=True)
