"""Several processes on the GPUs there are, and NCCL as far as one GPU lets it be seen."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

MODES = {
    "whole": {},
    "minibatches": {"batch_nodes": 16},
    "sampled": {"mode": "sampled", "batch_nodes": 16, "fan_out": 3},
    "whole, 16 bits": {"precision": "bf16"},
    "sampled, 16 bits": {"mode": "sampled", "batch_nodes": 16, "fan_out": 3, "precision": "bf16"},
}

NCCL = """
import torch, torch.distributed as dist
from torch import nn
from graphcl.distributed import _sum_bucket, current_share
torch.cuda.set_device(0)
dist.init_process_group(
    "cpu:gloo,cuda:nccl", init_method=f"file://{folder}/meet", rank=0, world_size=1
)
assert current_share().world == 1
linear = nn.Linear(5, 3, device="cuda")
x = torch.randn(7, 5, device="cuda")
linear(x).square().sum().backward()
plain = [parameter.grad.clone() for parameter in linear.parameters()]
linear.zero_grad()
parallel = nn.parallel.DistributedDataParallel(linear)
parallel.register_comm_hook(None, _sum_bucket)
parallel(x).square().sum().backward()
for ours, theirs in zip((p.grad for p in linear.parameters()), plain, strict=True):
    torch.testing.assert_close(ours, theirs)
every = x.new_empty(1, *x.shape)
dist.all_gather(list(every), x)
total = x.clone()
dist.all_reduce(total)
dist.broadcast(x[2:4], src=0)
flag = torch.tensor([1])  # on the host: gloo's
dist.all_reduce(flag, op=dist.ReduceOp.MAX)
assert torch.equal(every[0], x) and torch.equal(total, x) and bool(flag)
dist.destroy_process_group()
print("done by", ".".join(map(str, torch.cuda.nccl.version())))
"""


def train(folder, processes, **settings):
    """Trains by torchrun and returns the losses and weights."""
    changes = {"epochs": 6, "dim": 16, "precision": "float32"} | settings
    options = [part for key, value in changes.items() for part in ("--set", f"{key}={value}")]
    run = folder / f"run-{processes}"
    module = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(processes))
    command = ("-m", "graphcl", "train", folder / "mine.npz", "--device", "cuda", "--out", run)
    done = subprocess.run(
        [sys.executable, "-m", *module, *command, *options],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in metrics], load_file(run / "model.safetensors")


@pytest.mark.parametrize("mode", MODES)
def test_more_processes_than_gpus_train_the_same_encoder(tmp_path, graph, mode):
    """NCCL would refuse two processes on a GPU: gloo transfers everything."""
    np.savez(tmp_path / "mine.npz", edge_index=graph.edge_index(), x=graph.x, y=graph.y)
    processes = torch.cuda.device_count() + 1
    losses, weights = train(tmp_path, processes, **MODES[mode])
    alone, those = train(tmp_path, 1, **MODES[mode])
    # In 16 bits each tile rounds its weights by itself: what is promised there is 5e-3.
    assert losses == pytest.approx(alone, rel=5e-3 if "16 bits" in mode else 1e-4)
    for name, weight in weights.items():  # Adam turns rounding of a gradient near 0 into a step
        assert np.linalg.norm(weight - those[name]) < 1e-2 * np.linalg.norm(those[name]), name


def test_nccl_carries_what_lies_on_gpus(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", f"folder = {str(tmp_path)!r}\n{NCCL}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("done by")
