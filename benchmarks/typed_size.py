"""Time and memory of a typed graph against the plain graph of the same size.

usage: python -m benchmarks.typed_size --out ROWS.jsonl [--nodes 1000000] [--edges 10000000]
           [--features 64] [--dim 128] [--steps 20] [--device cpu]

The typed graph has four types and six relations (`graphcl.datasets.typed_synthetic`); the plain one
is the same graph, flattened, with the features of all types in the same columns. Each is measured
in a process of its own: seconds to make the graph from edge lists, seconds of a step of sampled
training and of an epoch of such steps, seconds of exact embeddings of all nodes, and the peak of
resident memory. Seconds are of the wall and of the processor: on a machine that does other work,
look at the latter.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rows import append, provenance
from graphcl import Graph, GraphCL, TypedGraph
from graphcl.datasets.typed_synthetic import typed_graph_of_size
from graphcl.devices import resolve_device
from graphcl.graphs.typed_interchange import offsets
from graphcl.memory import peak_resident_bytes


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Returns what a function returns, and its seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    found = work()
    seconds = time.perf_counter() - wall, time.process_time() - processor
    return found, {"wall": round(seconds[0], 3), "processor": round(seconds[1], 3)}


def edge_lists(graph: TypedGraph) -> dict[Any, Any]:
    """Returns the edges of each relation, each undirected edge once."""
    found = {}
    for key, one in graph.relations.items():
        ends = one.edge_index()
        if one.edge_ids is not None:
            ends = ends[:, np.unique(one.edge_ids, return_index=True)[1]]
        found[key] = ends
    return found


def measure(kind: str, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of one kind of graph."""
    made = typed_graph_of_size(options.nodes, options.edges, options.features)
    lists, tables = edge_lists(made), {name: one.x for name, one in made.nodes.items()}
    starts = offsets(made)
    undirected = {key: one.undirected for key, one in made.relations.items()}
    del made
    before = peak_resident_bytes()
    graph: Any
    if kind == "typed":
        relations = {
            key: {"edge_index": ends} | ({"undirected": True} if undirected[key] else {})
            for key, ends in lists.items()
        }
        graph, build = timed(lambda: TypedGraph.from_edges(tables, relations))
    else:
        joined = np.concatenate(
            [ends + np.array([[starts[key[0]]], [starts[key[2]]]]) for key, ends in lists.items()],
            axis=1,
        )
        x = np.concatenate(list(tables.values()))
        graph, build = timed(lambda: Graph.from_edge_index(joined, x))
    del lists
    settings: dict[str, Any] = {"dim": options.dim, "batch_nodes": 512, "mode": "sampled"}
    settings |= {"device": options.device, "feature_scaling": "none"}
    steps = -(-options.nodes // 512)
    model = GraphCL(epochs=1, **settings)
    # The first steps compile; those after them are measured.
    ticks: list[tuple[float, float]] = []

    class Stop(Exception):  # noqa: N818 (ends a training that is long enough)
        pass

    from graphcl.training import Checkpoints

    class Watch(Checkpoints):
        def __call__(self, state: Any) -> None:
            ticks.append((time.perf_counter(), time.process_time()))
            if state.step >= options.steps + 5:
                raise Stop

        def latest(self, trained: Any) -> None:
            del trained

    with suppress(Stop):
        model.fit(graph, checkpoints=Watch("."))
    wall, processor = (
        (ticks[-1][column] - ticks[4][column]) / (len(ticks) - 5) for column in (0, 1)
    )
    trained = peak_resident_bytes()
    _, embed = timed(lambda: model.transform(graph))
    return {
        "kind": kind,
        "build": build,
        "step": {"wall": round(wall, 4), "processor": round(processor, 4)},
        "epoch": {"wall": round(wall * steps, 1), "processor": round(processor * steps, 1)},
        "embed": embed,
        "before_bytes": before,
        "trained_bytes": trained,
        "peak_memory_bytes": peak_resident_bytes(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=10_000_000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", choices=("plain", "typed"), help="measure in this process")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.only, options)))
        return
    about = {key: getattr(options, key) for key in ("nodes", "edges", "features", "dim", "steps")}
    for kind in ("plain", "typed"):
        command = [sys.executable, "-m", "benchmarks.typed_size", *sys.argv[1:], "--only", kind]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        row = json.loads(done.stdout.splitlines()[-1])
        append(options.out, about | row | provenance(resolve_device(options.device)))
        print(row, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
