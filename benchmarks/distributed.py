"""Throughput of sampled training with two processes against one, on one machine.

usage: python -m benchmarks.distributed [--out ROWS.jsonl]

The same training runs three times on the command line: one process with one thread, one process
with two threads, and two processes with one thread each. The rate, in seed nodes per second, is
that of the fastest epoch after the first. On two cores, the last two cases use the same hardware.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import rows
from graphcl.datasets.synthetic import synthetic_graph

NODES, EDGES, FEATURES = 20_000, 200_000, 64
SETTINGS = {
    "mode": "sampled",
    "encoder": "residual",
    "layers": 3,
    "fan_out": 10,
    "dim": 128,
    "batch_nodes": 512,
    "epochs": 4,
}


def seeds_per_second(folder: Path, *, processes: int, threads: int) -> float:
    """Trains once and returns the rate of the fastest epoch after the first."""
    out = folder / f"{processes}-{threads}"
    changes = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "graphcl", "train", str(folder / "graph.npz")]
    options = ["--processes", str(processes), "--device", "cpu", "--checkpoint-every", "never"]
    limits = {"OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads)}
    subprocess.run(
        [*command, "--out", str(out), *options, *changes], check=True, env=os.environ | limits
    )
    marks = [json.loads(line)["seconds"] for line in (out / "metrics.jsonl").open()]
    return NODES / float(np.diff(marks).min())


def measure() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph = synthetic_graph(NODES, EDGES, FEATURES, 10)
        np.savez(folder / "graph.npz", edge_index=graph.edge_index(), x=graph.x)
        rates = {
            f"{processes} x {threads}": seeds_per_second(
                folder, processes=processes, threads=threads
            )
            for processes, threads in ((1, 1), (1, 2), (2, 1))
        }
    return {
        "what": "sampled training, processes x threads, one machine, seeds per second",
        "nodes": NODES,
        "settings": SETTINGS,
        "seeds_per_second": rates,
        "ratio": {
            "2 processes to 1, one thread each": rates["2 x 1"] / rates["1 x 1"],
            "2 processes to 1 of two threads": rates["2 x 1"] / rates["1 x 2"],
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    row = measure()
    print(json.dumps(row, indent=2))
    if options.out:
        rows.append(options.out, row | rows.provenance(torch.device("cpu")))


if __name__ == "__main__":
    main()
