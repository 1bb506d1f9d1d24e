"""A small network that classifies handwritten digits: scikit-learn's 1,797 images of 8 x 8 grey values.

    python -m ropeteam_trainer.recipes.digits [--epochs N] [--global-batch N] [--optimizer AdamW|SGD]

Every fifth image is for validation, the others for training. Accuracy at least 95 %, after seconds.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F  # noqa: N812  # the name everybody knows
from torch import nn
from torch.utils.data import TensorDataset

import ropeteam_trainer
from ropeteam_trainer.recipes import common

Split = tuple[torch.Tensor, torch.Tensor]


def load_data() -> tuple[Split, Split]:
    """Training and validation data (images: count x 64, from 0 to 1; digits: count). Ends the program with
    exit code 2 without scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        common.exit_with_error("this recipe needs scikit-learn in the image: pip install scikit-learn")
    values, digits = load_digits(return_X_y=True)
    pixels, labels = torch.tensor(values, dtype=torch.float32) / 16, torch.tensor(digits)
    is_validation = torch.arange(len(pixels)) % 5 == 0
    return (pixels[~is_validation], labels[~is_validation]), (pixels[is_validation], labels[is_validation])


def optimizer_for(model: nn.Module, name: str, learning_rate: float) -> torch.optim.Optimizer:
    if name == "SGD":
        return torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=learning_rate)


def main() -> None:
    """Train, evaluate, and print the results on rank 0."""
    parser = argparse.ArgumentParser(description="Train a network that reads handwritten digits.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--global-batch", type=int, default=64)
    parser.add_argument("--optimizer", choices=["AdamW", "SGD"], default="AdamW", help="SGD has momentum 0.9")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of initial weights and of the order of images"
    )
    options = parser.parse_args()
    training, (pixels, digits) = load_data()

    torch.manual_seed(options.seed)  # the same first weights on all ranks
    job = ropeteam_trainer.init(device="cpu")
    model: nn.Module = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    optimizer = optimizer_for(model, options.optimizer, options.learning_rate)
    model, optimizer = job.wrap(model, optimizer)
    size = job.global_batch or options.global_batch
    total = -(-len(training[0]) // size) * options.epochs

    job.restore(model=model, optimizer=optimizer)
    data = TensorDataset(*training)
    for image_batch, digit_batch in job.batches(
        data, global_batch=size, epochs=options.epochs, seed=options.seed
    ):
        loss = F.cross_entropy(model(image_batch), digit_batch)
        optimizer.zero_grad()
        (loss * job.batch_weight).backward()
        optimizer.step()
        job.report(loss=loss, total_steps=total)
        if job.step % 50 == 0 or job.step == 1:
            common.print_on_rank_0(job, f"step {job.step}/{total} loss {loss.item():.3f}")

    with job.phase("eval"), torch.no_grad():
        correct = (model(pixels).argmax(dim=1) == digits).sum().item()
    common.print_result(job, accuracy=round(correct / len(digits), 4), pictures=len(digits), steps=job.step)


if __name__ == "__main__":
    main()
