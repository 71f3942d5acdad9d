"""What several processes gain over one, on one machine: in sampled and in whole-graph training.

usage: python -m benchmarks.distributed [--only sampled|generated|pubmed] [--out ROWS.jsonl]

Sampled: the same training runs three times on the command line: one process with one thread, one
process with two threads, and two processes with one thread each. The rate, in seed nodes per
second, is that of the fastest epoch after the first. On two cores, the last two cases use the same
hardware.

Whole: the same training runs in 1, 2 and 4 processes of one thread each, on a generated graph and
on Pubmed. The time is that of the fastest epoch after the first; so is the processor time, which
is that of the busiest process and says more if other programs run. The memory is what training adds
to a process: the peak of its resident memory (VmHWM) less what was resident before it opened the
graph, which is a store on disk, and after it had trained on a small one. Of several processes it is
that of the largest.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import rows
from graphcl.datasets import load_dataset
from graphcl.datasets.synthetic import synthetic_graph
from graphcl.distributed import group
from graphcl.estimator.model import GraphCL
from graphcl.graphs.graph import Graph
from graphcl.memory import peak_resident_bytes
from graphcl.recipes import Recipe

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


def measure_sampled() -> dict[str, Any]:
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


WHOLE = {
    "generated": {
        "nodes": 20_000,
        "edges": 200_000,
        "features": 128,
        "settings": {"encoder": "residual", "layers": 2, "dim": 256, "batch_nodes": 4_000},
    },
    "pubmed": {"settings": {"encoder": "mean", "layers": 2, "dim": 512, "batch_nodes": 4_000}},
}
WORLDS = (1, 2, 4)


def measure_whole(name: str, epochs: int) -> dict[str, Any]:
    case: dict[str, Any] = WHOLE[name]
    settings = {"recipe": "default", "mode": "full", "epochs": epochs} | case["settings"]
    with tempfile.TemporaryDirectory() as folder:
        size = [case[key] for key in ("nodes", "edges", "features") if key in case]
        graph = synthetic_graph(*size, 10) if size else load_dataset(name)
        graph.save(Path(folder) / "graph")
        counts = {"nodes": graph.num_nodes, "edges": graph.num_edges}
        counts["features"] = graph.num_features
        (Path(folder) / "settings.json").write_text(json.dumps(settings))
        found = {world: train_whole(Path(folder), world) for world in WORLDS}
    seconds = {world: min(one["seconds"]) for world, one in found.items()}
    memory = {world: one["bytes"] for world, one in found.items()}
    return {
        "what": "whole-graph training, processes of one thread, one machine",
        "graph": name,
        **counts,
        "settings": settings,
        "epoch_seconds": {str(world): value for world, value in seconds.items()},
        "epoch_processor_seconds": {
            str(world): min(one["processor_seconds"]) for world, one in found.items()
        },
        "bytes_per_process": {str(world): value for world, value in memory.items()},
        "losses": {str(world): one["losses"] for world, one in found.items()},
        "ratio": {
            f"{world} processes to 1": {
                "speed": seconds[1] / seconds[world],
                "memory": memory[world] / memory[1],
            }
            for world in WORLDS[1:]
        },
    }


def train_whole(folder: Path, world: int) -> dict[str, Any]:
    """Trains in `world` processes; returns the epochs' seconds, the losses and the most memory."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    start = launcher if world > 1 else []
    limits = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, *start, "-m", "benchmarks.distributed", "--worker", str(folder)],
        check=True,
        env=os.environ | limits,
    )
    parts = [json.loads((folder / f"{world}-{rank}.json").read_text()) for rank in range(world)]
    first = parts[0]
    marks = first["seconds"]
    return {
        "seconds": np.diff(marks).tolist(),
        "processor_seconds": np.max([part["processor_seconds"] for part in parts], axis=0).tolist(),
        "losses": first["losses"],
        "bytes": max(part["bytes"] for part in parts),
    }


def work(folder: Path) -> None:
    """One process of a training; leaves what it found in `folder`."""
    settings = json.loads((folder / "settings.json").read_text())
    recipe = Recipe(settings.pop("recipe"), **settings)
    with group(torch.device("cpu")) as share:
        small = synthetic_graph(200, 1000, 8, 2)  # loads what libraries load on first use
        GraphCL(recipe, epochs=1, dim=8, batch_nodes=50, device="cpu").fit(small)
        before = resident_bytes()
        graph = Graph.open(folder / "graph")
        marks: list[float] = []
        model = GraphCL(recipe, device="cpu").fit(
            graph, on_epoch=lambda _: marks.append(time.process_time())
        )
        found = {
            "bytes": peak_resident_bytes() - before,
            "processor_seconds": np.diff(marks).tolist(),
            "seconds": [metrics.seconds for metrics in model.history_],
            "losses": [metrics.loss for metrics in model.history_],
        }
        (folder / f"{share.world}-{share.rank}.json").write_text(json.dumps(found))


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["sampled", *WHOLE])
    parser.add_argument("--epochs", type=int, default=4, help="of whole-graph training")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options.worker)
    for name in (options.only,) if options.only else ("sampled", *WHOLE):
        row = measure_sampled() if name == "sampled" else measure_whole(name, options.epochs)
        print(json.dumps(row, indent=2))
        if options.out:
            rows.append(options.out, row | rows.provenance(torch.device("cpu")))
    return None


if __name__ == "__main__":
    main()
