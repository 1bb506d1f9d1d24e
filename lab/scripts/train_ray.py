"""train_ddp.py under Ray Train, for the benchmark `recovery`: three workers of a Ray of its own.

    train_ray.py FOLDER

A worker that dies ends its group, and Ray starts another; the script resumes from its own file.
"""

import importlib
import os
import runpy
import sys
from pathlib import Path
from typing import Any

WORKERS = 3


def train(settings: dict[str, str]) -> None:
    """In each worker, whose process group Ray has formed."""
    import torch.distributed as dist

    os.environ["RANK"] = str(dist.get_rank())
    sys.argv = [settings["script"], settings["folder"]]
    dist.init_process_group = lambda *_: None
    runpy.run_path(settings["script"], run_name="__main__")


def main() -> None:
    ray: Any = importlib.import_module("ray")  # not one of our dependencies
    ray_train: Any = importlib.import_module("ray.train")
    ray_torch: Any = importlib.import_module("ray.train.torch")
    folder = Path(sys.argv[1]).resolve()
    ray.init(
        num_cpus=WORKERS + 1, include_dashboard=False, log_to_driver=False, _temp_dir=str(folder / "ray")
    )
    ray_torch.TorchTrainer(
        train,
        train_loop_config={"script": str(Path(__file__).with_name("train_ddp.py")), "folder": str(folder)},
        torch_config=ray_torch.TorchConfig(backend="gloo"),
        scaling_config=ray_train.ScalingConfig(num_workers=WORKERS),
        run_config=ray_train.RunConfig(
            storage_path=str(folder / "results"), failure_config=ray_train.FailureConfig(max_failures=-1)
        ),
    ).fit()


main()
