"""Builds a store larger than memory, trains from it and embeds from it, each under a memory limit.

usage: python -m benchmarks.store [--nodes 10000000] [--limit-gb 4] [--folder DIR] [--out FILE]
           [--stage build | open | train | embed]

Each stage runs in its own process. The kernel limits the private memory of that process
(RLIMIT_DATA), which does not include mapped files. To limit all memory, mapped pages included, use
a control group: `systemd-run --scope -p MemoryMax=4G python -m benchmarks.store`. The rows then
contain the group's limit and its peak. With 10 million nodes the stages take 12 GB of disk.
`--stage` runs only one stage on DIR/store, and prints its row instead of appending it. After
`--stage build`, `--stage train --limit-gb 2` in a control group of 2 GB trains from a store that is
larger than the group's memory.

The nodes of the graph lie on a shuffled ring. A node has ten neighbours on each side: half of them
near, half at random distances. Classes are segments of the ring. The features of a node are the
centre of its class plus noise.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import rows
from graphcl.distributed import ALONE, Share
from graphcl.embedding import embed_graph
from graphcl.encoders import build_encoder
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import EDGE, NODE
from graphcl.losses import NTXent
from graphcl.memory import control_groups
from graphcl.store.reader import verify_store
from graphcl.store.writer import StoreWriter
from graphcl.training import SampledGraph, train
from graphcl.training.loop import Batch
from graphcl.views import Drop, Perturbation

CPU = torch.device("cpu")
FEATURES, CLASSES, SIDE = 64, 40, 10
DIM, LAYERS, BATCH_NODES, STEPS = 128, 2, 1024, 200
PERTURBATION = Drop(0.2, 0.5)
BLOCK = 1 << 18


class PeakMemory:
    """Samples the peak of this process's resident memory, private and mapped, 20 times a second."""

    def __init__(self) -> None:
        self.peak = {"RssAnon": 0, "RssFile": 0, "VmRSS": 0}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> dict[str, int]:
        self._thread.start()
        return self.peak

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.05):
            for line in Path("/proc/self/status").read_text().splitlines():
                key = line.split(":")[0]
                if key in self.peak:
                    self.peak[key] = max(self.peak[key], int(line.split()[1]) * 1024)


def group_memory() -> dict[str, int]:
    """Returns the limit and the peak of this process's memory control group, if it has a limit."""
    names = ("memory.max", "memory.peak"), ("memory.limit_in_bytes", "memory.max_usage_in_bytes")
    for folder in control_groups():
        for files in names:
            if all((folder / name).exists() for name in files):
                limit, peak = ((folder / name).read_text().strip() for name in files)
                if limit.isdigit() and int(limit) < 1 << 60:  # version 1 writes "none" as a number
                    return {"group_limit_bytes": int(limit), "group_peak_bytes": int(peak)}
    return {}


def build(path: Path, num_nodes: int, features: Any = np.float16) -> dict[str, Any]:
    """Writes the store block by block; keeps only the ring's order and one block in memory."""
    random = np.random.default_rng(0)
    node_at = random.permutation(num_nodes).astype(np.int32)
    place_of = np.empty_like(node_at)
    place_of[node_at] = np.arange(num_nodes, dtype=np.int32)
    near = np.arange(1, SIDE // 2 + 1)
    far = random.choice(num_nodes // 2 - SIDE - 1, SIDE - len(near), replace=False) + SIDE
    steps = np.concatenate([near, far, -near, -far])
    centres = random.standard_normal((CLASSES, FEATURES), dtype=np.float32)
    degree = 2 * SIDE
    began = time.perf_counter()
    with StoreWriter(path, name="ring", overwrite=True) as store:
        (edges,) = store.add_relation(EDGE, undirected=True)
        (table,) = store.add_type(NODE, [0, num_nodes])
        indptr = edges.array("indptr", (num_nodes + 1,), np.int64)
        indices = edges.array("indices", (num_nodes * degree,), np.int32)
        x = table.array("x", (num_nodes, FEATURES), features)
        y = table.array("y", (num_nodes,), np.int64)
        for start in range(0, num_nodes, BLOCK):
            nodes = np.arange(start, min(start + BLOCK, num_nodes))
            places = place_of[nodes].astype(np.int64)
            around = node_at[(places[:, None] + steps) % num_nodes]
            around.sort(axis=1)
            indptr[nodes] = nodes * degree
            indices[start * degree : (start + len(nodes)) * degree] = around.reshape(-1)
            y[nodes] = places * CLASSES // num_nodes
            noise = random.standard_normal((len(nodes), FEATURES), dtype=np.float32)
            x[nodes[0] : nodes[-1] + 1] = noise + centres[y[nodes]]
        indptr[num_nodes] = num_nodes * degree
        filled = time.perf_counter() - began
        for number, name in enumerate(("train_mask", "val_mask", "test_mask")):
            table.write(name, np.arange(num_nodes) % 1000 == number)
    size = sum(file.stat().st_size for file in path.rglob("*.npy"))
    return {"store_bytes": size, "fill_seconds": filled}


def open_and_check(path: Path, _: int) -> dict[str, Any]:
    """Times opening, the scan of the structure and the checksums."""
    marks = [time.perf_counter()]
    graph = Graph.open(path)
    marks.append(time.perf_counter())
    graph.check()
    marks.append(time.perf_counter())
    verify_store(path)
    marks.append(time.perf_counter())
    names = ("open_seconds", "scan_seconds", "checksum_seconds")
    return dict(zip(names, np.diff(marks).tolist(), strict=True))


class FirstSteps:
    """A source whose epoch ends after `steps` steps."""

    constant = False

    def __init__(self, source: SampledGraph, steps: int) -> None:
        self._source, self.steps_per_epoch = source, steps

    def epoch(
        self,
        number: int,
        seed: int,
        *,
        perturbation: Perturbation,
        first: int = 0,
        share: Share = ALONE,
    ) -> Iterator[Batch]:
        """Yields the first batches of an epoch."""
        where = {"first": first, "share": share}
        batches = self._source.epoch(number, seed, perturbation=perturbation, **where)
        yield from islice(batches, self.steps_per_epoch - first)


def encoder(num_features: int) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(0)
    return build_encoder("mean", num_features, dim=DIM, layers=LAYERS, generator=generator)


def train_steps(path: Path, _: int) -> dict[str, Any]:
    """Trains some steps. The time includes the first ones, which compile and read pages in."""
    graph = Graph.open(path)
    model = encoder(graph.num_features)
    source = SampledGraph.of(
        graph,
        device=CPU,
        feature_scaling="row",
        batch_nodes=BATCH_NODES,
        layers=LAYERS,
        own_features=False,
    )
    losses: list[float] = []
    began = time.perf_counter()
    train(
        model,
        FirstSteps(source, STEPS),
        perturbation=PERTURBATION,
        loss=NTXent(0.5),
        epochs=1,
        on_epoch=lambda metrics: losses.append(metrics.loss),
    )
    seconds = time.perf_counter() - began
    torch.save(model.state_dict(), path.parent / "weights.pt")
    rate = STEPS * BATCH_NODES / seconds
    return {"steps": STEPS, "loss": losses[0], "nodes_per_second": rate, "seconds": seconds}


def embed_some(path: Path, _: int) -> dict[str, Any]:
    """Embeds a tenth of the nodes exactly; hidden layers are stored in a temporary file."""
    graph = Graph.open(path)
    model = encoder(graph.num_features)
    model.load_state_dict(torch.load(path.parent / "weights.pt", weights_only=True))
    count = graph.num_nodes // 10
    computed = []
    began = time.perf_counter()
    z = embed_graph(
        model,
        graph,
        device=CPU,
        feature_scaling="row",
        nodes=slice(0, count),
        out=path.parent / "z.npy",
        scratch=path.parent,
        on_rows=lambda done, total: computed.append(total) if done == total else None,
    )["node"]
    seconds = time.perf_counter() - began
    return {
        "embedded": len(z),
        "rows_of_all_layers": computed[0],
        "rows_per_second": computed[0] / seconds,
        "seconds": seconds,
    }


STAGES: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "build": build,
    "open": open_and_check,
    "train": train_steps,
    "embed": embed_some,
}


def stage(name: str, path: Path, num_nodes: int, limit: int) -> dict[str, Any]:
    """Runs one stage in this process under the memory limit."""
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    began = time.perf_counter()
    with PeakMemory() as peak:
        found = STAGES[name](path, num_nodes)
    row = {"what": name, "num_nodes": num_nodes, "limit_bytes": limit, **found}
    row["stage_seconds"] = time.perf_counter() - began
    row |= {"peak_private_bytes": peak["RssAnon"], "peak_mapped_bytes": peak["RssFile"]}
    return row | group_memory()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000_000)
    parser.add_argument("--limit-gb", type=float, default=4.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/store.jsonl"))
    parser.add_argument("--stage", choices=STAGES)
    given = parser.parse_args()
    limit = int(given.limit_gb * 1e9)
    if given.stage:
        print(json.dumps(stage(given.stage, given.folder / "store", given.nodes, limit)))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for name in STAGES:
            options = ["--nodes", str(given.nodes), "--limit-gb", str(given.limit_gb)]
            command = [sys.executable, "-m", "benchmarks.store", "--stage", name, *options]
            command += ["--folder", folder]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                last = (done.stderr.strip() or "killed").splitlines()[-1]
                row = {"what": name, "num_nodes": given.nodes, "failed": last}
            else:
                row = json.loads(done.stdout)
            row |= {"threads": torch.get_num_threads(), **rows.provenance(CPU)}
            rows.append(given.out, row)
            print(json.dumps(row), flush=True)
            if done.returncode:
                break


if __name__ == "__main__":
    main()
