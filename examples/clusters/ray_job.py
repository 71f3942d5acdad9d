"""Train on a graph in parts as a Ray Train job: `python ray_job.py PARTS RUN [OPTIONS]`."""

import sys
from pathlib import Path

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

parts, out = (Path(word).resolve() for word in sys.argv[1:3])
words = ["train", str(parts), "--out", str(out), "--resume", *sys.argv[3:]]


def work() -> int:
    """Runs `graphcl train` in a process that Ray has placed, and told of the others."""
    from graphcl.cli.main import run

    code = run(words)
    if code not in (0, 2):  # 2: the input is at fault, and would be again
        raise RuntimeError("Ray starts all workers again; they go on from the checkpoint")
    return code


trainer = TorchTrainer(
    work,
    scaling_config=ScalingConfig(num_workers=len(list(parts.glob("part-*")))),
    run_config=RunConfig(storage_path=f"{out}.ray", failure_config=FailureConfig(max_failures=3)),
)
sys.exit(trainer.fit().return_value)
