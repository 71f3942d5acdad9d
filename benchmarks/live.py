"""How long one new node takes beside a graph, and how many requests the service answers.

usage: python -m benchmarks.live node [--nodes 30000 1000000 10000000] [--recipes cora default]
           [--calls 1000] [--folder DIR] [--out FILE]

`node`: one new node with ten neighbours is embedded by `Live.embed_new`, exactly, with a model of
two layers of 128 (the recipe `cora`) or with the recipe `default`. The graph is that of
`benchmarks.store`: degree 20, 64 features, mapped from a store. Beside it, in the same process:
PyTorch Geometric's two mean layers of the same sizes over the whole grown graph, up to
`--rival-nodes` nodes. The first new nodes are compared with `transform` of the grown graph, up to
`--exact-nodes` nodes. Wall time depends on what else the machine does (`load`, the system's average
of the last minute over its cores); `cpu_ms` is the time that the process itself took.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import rows
from benchmarks.store import FEATURES, build
from graphcl.datasets.synthetic import synthetic_graph
from graphcl.estimator import GraphCL
from graphcl.graphs.graph import Graph
from graphcl.graphs.growing import grown_graph, new_nodes

CPU = torch.device("cpu")
NEIGHBOURS, DIM, LAYERS = 10, 128, 2
COMPARED, FORWARDS = 3, 3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["node"])
    parser.add_argument("--nodes", type=int, nargs="+", default=[30_000, 1_000_000, 10_000_000])
    parser.add_argument("--recipes", nargs="+", default=["cora", "default"])
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--rival-nodes", type=int, default=1_000_000)
    parser.add_argument("--exact-nodes", type=int, default=100_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for number in options.nodes:
            store = Path(folder) / "store"
            build(store, number)
            graph = Graph.open(store)
            began = time.perf_counter()
            graph.check()
            checked = time.perf_counter() - began
            rival = pyg_seconds(graph) if number <= options.rival_nodes else None
            for recipe in options.recipes:
                row = one_node(graph, recipe, options.calls, exact=number <= options.exact_nodes)
                row |= {"check_seconds": round(checked, 3)}
                if rival is not None:
                    row |= {"pyg_whole_graph_ms": rival}
                rows.append(options.out, row | rows.provenance(CPU))
                print(row)


def model_of(recipe: str) -> GraphCL:
    """Returns a model of the benchmark's sizes; its weights do not matter for the time."""
    own = {} if recipe == "default" else {"dim": DIM, "layers": LAYERS, "feature_scaling": "none"}
    small = synthetic_graph(2000, 8000, FEATURES, 5, seed=0)
    return GraphCL(recipe, **own, epochs=1, device="cpu").fit(small)


def one_node(graph: Graph, recipe: str, calls: int, *, exact: bool) -> dict[str, Any]:
    """Measures `embed_new` of one node at a time."""
    random = np.random.default_rng(1)
    model, number = model_of(recipe), graph.num_nodes
    x = random.standard_normal((calls, FEATURES)).astype(np.float32)
    near = [random.choice(number, NEIGHBOURS, replace=False) for _ in range(calls)]
    live = model.live(graph)
    live.embed_new(x[0], near[0])  # compiles
    wall, cpu = np.empty(calls), np.empty(calls)
    for call in range(calls):
        began, busy = time.perf_counter(), time.process_time()
        live.embed_new(x[call], near[call])
        wall[call], cpu[call] = time.perf_counter() - began, time.process_time() - busy
    row = {
        "what": "one new node",
        "nodes": number,
        "degree": round(len(graph.indices) / number, 1),
        "features": FEATURES,
        "recipe": recipe,
        "dim": model.encoder_.width,
        "layers": LAYERS,
        "neighbours": NEIGHBOURS,
        "calls": calls,
        **percentiles(wall, "ms"),
        **percentiles(cpu, "cpu_ms"),
        "load": round(os.getloadavg()[0] / (os.cpu_count() or 1), 2),
    }
    if exact:
        pairs = [(x[i : i + 1], near[i]) for i in range(COMPARED)]
        row["largest_difference"] = max(_difference(model, graph, *one) for one in pairs)
    return row


def _difference(model: GraphCL, graph: Graph, x: Any, near: Any) -> float:
    """Returns how far a new node is from its embedding in the grown graph embedded whole."""
    whole = grown_graph(graph, new_nodes(graph, x, [near]))
    expected = model.transform(whole)[-1]
    return float(np.abs(model.embed_new(x[0], near, graph=graph) - expected).max())


def percentiles(seconds: Any, unit: str) -> dict[str, float]:
    """Returns the median and the 99th percentile in milliseconds."""
    half, high = np.percentile(seconds, [50, 99]) * 1e3
    return {f"p50_{unit}": round(float(half), 3), f"p99_{unit}": round(float(high), 3)}


@torch.no_grad()
def pyg_seconds(graph: Graph) -> float:
    """Returns the milliseconds of PyTorch Geometric's layers over all nodes; the best of a few.

    The adjacency is a sparse matrix, for which its layers make no table of messages.
    """
    from torch_geometric.nn import SAGEConv

    layers = [
        SAGEConv(width, DIM, root_weight=False, bias=False) for width in [FEATURES, DIM][:LAYERS]
    ]
    indptr = torch.from_numpy(np.array(graph.indptr, dtype=np.int64))
    indices = torch.from_numpy(np.array(graph.indices, dtype=np.int64))
    size = (graph.num_nodes, graph.num_nodes)
    adjacency = torch.sparse_csr_tensor(indptr, indices, torch.ones(len(indices)), size=size)
    x = torch.from_numpy(np.asarray(graph.x, dtype=np.float32))
    times = []
    for _ in range(FORWARDS):
        began = time.perf_counter()
        h = torch.nn.functional.elu(layers[0](x, adjacency))
        layers[1](h, adjacency)
        times.append(time.perf_counter() - began)
    return round(min(times) * 1e3, 1)


if __name__ == "__main__":
    main()
