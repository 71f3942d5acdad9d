r"""Training over parts: steps a second, memory, bytes a step, and losses beside one process's.

usage: python -m benchmarks.parts_train [--nodes 100000] [--edges 1000000] --out ROWS.jsonl

The graph is generated as in `benchmarks.parts`, and divided in each order of `--orders`. Parts are
trained for `--steps` steps, without a cache and with one, each part in a process of its own; then
one process trains on the whole graph in the same order. All of it is on the loopback. The first
steps compile loops and are left out of the rate. A store in one part and the store itself are
trained in turns, `--again` times, by one process.

Each process can also be started by itself, wherever it is:

    RANK=0 WORLD_SIZE=4 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500 \
        python -m benchmarks.parts_train --worker PARTS --row FILE.json

with the rank of its part, the address of rank 0, and GLOO_SOCKET_IFNAME where a host has several
addresses. `--worker STORE --whole` is one process on a store, with no group. A process writes its
figures to FILE.json: `sent_bytes` are its own, per step, without gradients and losses; of them,
`fill_bytes` are what it sent while caches were filled. `benchmarks.parts_training` starts them on
hosts.
"""

import argparse
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.parts import COMMUNITIES, FEATURES, _anonymous
from benchmarks.rows import append, provenance
from graphcl.datasets.synthetic import synthetic_graph
from graphcl.distributed import current_share
from graphcl.estimator.fitted import Components
from graphcl.estimator.partitioned import PartitionedGraph, partitioned_source
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import NODE
from graphcl.graphs.schema import Schema
from graphcl.partitioned.boundary import open_own_part
from graphcl.recipes import load_recipe
from graphcl.store.header import is_parts, read_store
from graphcl.tabular.build import build_store
from graphcl.training.loop import TrainingState, train

WARM = 5  # steps that the rate leaves out
CPU = torch.device("cpu")


class EnoughError(Exception):
    """All steps are done."""


class Meter:
    """Counts steps and the largest anonymous memory; ends the training after enough of them."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.began = 0.0
        self.times: list[float] = []
        self.work: list[float] = []
        self.losses: list[float] = []
        self.peak, self._watching = 0, True
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while self._watching:
            self.peak = max(self.peak, _anonymous(os.getpid()))
            time.sleep(0.05)

    def __call__(self, state: TrainingState) -> None:
        """Counts a step."""
        if not state.results:  # an epoch's end
            return
        self.times.append(time.perf_counter())
        self.work.append(time.process_time())
        self.losses.append(float(state.results[-1][0]))
        if len(self.times) == self.steps:
            self._watching = False
            raise EnoughError

    def figures(self) -> dict[str, Any]:
        """Returns what was measured."""
        warm = min(WARM, len(self.times) - 2)
        count = len(self.times) - 1 - warm
        rate, work = count / (self.times[-1] - self.times[warm]), self.work[-1] - self.work[warm]
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        about = {"steps": len(self.times), "steps_per_second": round(rate, 3)}
        about["cpu_seconds_per_step"] = round(work / count, 4)
        about["first_step_seconds"] = round(self.times[0] - self.began, 2)
        return about | {"peak_bytes": self.peak, "resident_bytes": most, "losses": self.losses}


def opened(path: Path) -> Graph:
    """Opens a store, or a store in one part, as `graphcl train` does."""
    if not is_parts(path):
        return Graph.open(path)
    return Graph.open(path)


def worker(given: argparse.Namespace) -> None:
    """Trains one part, or a whole store, and writes what it measured."""
    torch.set_num_threads(given.threads)
    settings = {"dim": given.dim, "batch_nodes": given.batch_nodes, "mode": "sampled"}
    parts = Components(load_recipe("default").with_texts(**settings))
    meter = Meter(given.steps)
    about: dict[str, Any] = {}
    if given.whole:
        graph = opened(given.worker)
        source: Any = parts.source(*parts.prepare([graph]), device=CPU, ignore_memory=True)[0]
        num_features = graph.num_features
    else:
        if int(os.environ["WORLD_SIZE"]) > 1:
            dist.init_process_group("gloo", timeout=timedelta(seconds=given.timeout))
        part = open_own_part(given.worker, current_share())
        patience = timedelta(seconds=given.timeout)
        data = PartitionedGraph(given.worker, given.cache, given.topology, patience)
        source = partitioned_source(parts, data, part, ignore_memory=True)
        num_features = part.store.num_features
        about = {"rank": current_share().rank, "asked": source.topology.asks}
    filled = [] if given.whole else _filling(source)
    encoder = parts.new_encoder(Schema.plain(num_features), seed=0)
    meter.began = time.perf_counter()
    with suppress(EnoughError):
        train(
            encoder,
            source,
            perturbation=parts.perturbation,
            loss=parts.loss,
            epochs=10**6,
            learning_rate=parts.recipe.learning_rate,
            on_step=meter,
        )
    if not given.whole:
        topology, made = source.topology, len(meter.times)
        counts = topology.rows[NODE]
        about |= {"sent_bytes": topology.wire.sent / made, "rows_needed": counts.needed / made}
        about |= {"cache_hits": counts.kept / counts.needed if counts.needed else None}
        about["fill_bytes"] = sum(filled) / made
    given.row.write_text(json.dumps(about | meter.figures()))
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def _filling(source: Any) -> list[int]:
    """Returns a list that will hold the bytes that are sent while the cache is filled."""
    found: list[int] = []
    rows, wire = source.topology.rows[NODE], source.topology.wire
    plain = rows.keep

    def keep(nodes: Any) -> None:
        before = wire.sent
        plain(nodes)
        found.append(wire.sent - before)

    rows.keep = keep
    return found


def launched(path: Path, options: list[str], world: int, folder: Path) -> list[dict[str, Any]]:
    """Runs `world` workers on this machine and returns what they measured."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    base = os.environ | {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
    command = [sys.executable, "-m", "benchmarks.parts_train", "--worker", str(path), *options]
    files = [folder / f"row-{rank}.json" for rank in range(world)]
    processes = [
        subprocess.Popen(
            [*command, "--row", str(file)],
            env=base | {"MASTER_PORT": port, "RANK": str(rank), "NUMBA_NUM_THREADS": "1"},
        )
        for rank, file in enumerate(files)
    ]
    for process in processes:
        assert process.wait() == 0, command
    return [json.loads(file.read_text()) for file in files]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10**5)
    parser.add_argument("--edges", type=int, default=10**6)
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--orders", nargs="*", default=["neighbours", "hash"])
    parser.add_argument("--caches", nargs="*", type=int, default=[0, 5 * 10**6])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch-nodes", type=int, default=1024)
    parser.add_argument("--again", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--topologies", nargs="*", default=["auto"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", type=Path)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--cache", type=int, default=0)
    parser.add_argument("--topology", default="auto")
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--row", type=Path)
    given = parser.parse_args()
    if given.worker is not None:
        worker(given)
        return
    about = {key: getattr(given, key) for key in ("nodes", "edges", "dim", "batch_nodes")}
    shared = ["--steps", str(given.steps), "--dim", str(given.dim)]
    shared += ["--batch-nodes", str(given.batch_nodes), "--threads", str(given.threads)]

    def row(case: str, **values: Any) -> None:
        measured = {"benchmark": "parts_train", "case": case, **about, "features": FEATURES}
        measured |= {**values, "cores": os.cpu_count(), **provenance(CPU)}
        append(given.out, measured)
        print(json.dumps(measured), flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph = synthetic_graph(given.nodes, given.edges, FEATURES, COMMUNITIES)
        graph.save(folder / "store")
        build_store(folder / "store", out=folder / "one", parts=1, order="as-is")
        for _ in range(given.again):  # in turns: a machine is not always the same
            for case, path in {"one store": "store", "one part": "one"}.items():
                (found,) = launched(folder / path, [*shared, "--whole"], 1, folder)
                row(case, processes=1, **{k: v for k, v in found.items() if k != "losses"})
        for order in given.orders:
            parts, joined = folder / order, folder / f"joined-{order}"
            build_store(folder / "store", out=parts, parts=given.parts, order=order)
            cut = read_store(parts).cut_share
            Graph.open(parts, restored=False).save(joined)
            (whole,) = launched(joined, [*shared, "--whole"], 1, folder)
            for topology in given.topologies:
                for cache in given.caches:
                    options = [*shared, "--cache", str(cache), "--topology", topology]
                    found = launched(parts, options, given.parts, folder)
                    apart = np.abs(np.subtract(found[0]["losses"], whole["losses"]))
                    hits = [one["cache_hits"] for one in found]
                    row(
                        "in parts",
                        order=order,
                        parts=given.parts,
                        topology=topology,
                        cache_bytes=cache,
                        cut_share=cut,
                        steps=given.steps,
                        steps_per_second=min(one["steps_per_second"] for one in found),
                        steps_per_second_alone=whole["steps_per_second"],
                        cpu_seconds_per_step=max(one["cpu_seconds_per_step"] for one in found),
                        peak_bytes=max(one["peak_bytes"] for one in found),
                        peak_bytes_alone=whole["peak_bytes"],
                        sent_bytes=sum(one["sent_bytes"] for one in found),
                        rows_needed=sum(one["rows_needed"] for one in found),
                        cache_hits=None if None in hits else float(np.mean(hits)),
                        loss_difference=float(apart.max()),
                        last_loss=whole["losses"][-1],
                    )
            for left in (joined, parts):
                shutil.rmtree(left)


if __name__ == "__main__":
    main()
