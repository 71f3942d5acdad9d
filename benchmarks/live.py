"""How long one new node takes beside a graph, and how many requests the service answers.

usage: python -m benchmarks.live node [--nodes 30000 1000000 10000000] [--recipes cora default]
           [--calls 1000] [--folder DIR] [--out FILE]
       python -m benchmarks.live http [--nodes 30000] [--calls 1000] [--out FILE]
       python -m benchmarks.live load [--nodes 30000] [--clients 32] [--seconds 60] [--out FILE]
       python -m benchmarks.live vectors [--nodes 10000000] [--out FILE]
       python -m benchmarks.live page [--check]

`node`: one new node with ten neighbours is embedded by `Live.embed_new`, exactly, with a model of
two layers of 128 (the recipe `cora`) or with the recipe `default`. The graph is that of
`benchmarks.store`: degree 20, 64 features, mapped from a store. Beside it, in the same process:
PyTorch Geometric's two mean layers of the same sizes over the whole grown graph, up to
`--rival-nodes` nodes. The first new nodes are compared with `transform` of the grown graph, up to
`--exact-nodes` nodes. Wall time depends on what else the machine does (`load`, the system's average
of the last minute over its cores); `cpu_ms` is the time that the process itself took.

`http`: the same node through `graphcl serve` on this machine, one request after the other. `load`:
many clients at once for a while; every answer is compared with the right one. Then the same with
the service killed half-way (SIGKILL) and started again at the same port. `vectors`:
embeddings of 128 numbers, mapped from a file, are written by each streaming writer of
`graphcl embed --to`; `private_bytes` is the peak of the process's own memory. `page` writes the
tables of docs/research/speed.md from the committed rows; with `--check` it compares and writes
nothing.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import rows
from benchmarks.live_service import Load, Service, one_by_one, percentiles
from benchmarks.store import FEATURES, PeakMemory, build
from graphcl.datasets.synthetic import synthetic_graph
from graphcl.estimator.model import GraphCL
from graphcl.exporting.vectors import batches, write_vectors
from graphcl.files.atomic import write_whole
from graphcl.graphs.graph import Graph
from graphcl.graphs.neighbourhood import grown_part, new_nodes

CPU = torch.device("cpu")
NEIGHBOURS, DIM, LAYERS = 10, 128, 2
COMPARED, FORWARDS = 3, 3
TITLES = {"http": "one client", "load": "many clients", "killed": "killed and started again"}
PAGE = Path(__file__).parents[1] / "docs/research/speed.md"
RESULTS = Path(__file__).parent / "results/live.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["node", "http", "load", "vectors", "page"])
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--nodes", type=int, nargs="+", default=[30_000, 1_000_000, 10_000_000])
    parser.add_argument("--recipes", nargs="+", default=["cora", "default"])
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--rival-nodes", type=int, default=1_000_000)
    parser.add_argument("--exact-nodes", type=int, default=100_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("live.jsonl"))
    options = parser.parse_args()
    if options.what == "page":
        text = page(PAGE.read_text(), rows.read(RESULTS))
        if options.check:
            raise SystemExit(0 if text == PAGE.read_text() else f"{PAGE} is stale")
        write_whole(PAGE, text)
        return
    if options.what == "vectors":
        for row in streamed(options.nodes[-1], options.folder):
            rows.append(options.out, row | rows.provenance(CPU))
            print(row)
        return
    if options.what != "node":
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            for row in through_http(Path(folder), options):
                rows.append(options.out, row | rows.provenance(CPU))
                print(row)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for number in options.nodes:
            store = Path(folder) / "store"
            build(store, number)
            graph = Graph.open(store)
            began = time.perf_counter()
            graph.check()
            checked = time.perf_counter() - began
            measured = [
                one_node(graph, recipe, options.calls, exact=number <= options.exact_nodes)
                for recipe in options.recipes
            ]
            # After ours: its threads go on spinning for a while and would disturb them.
            rival = {}
            if number <= options.rival_nodes:
                rival = {"pyg_whole_graph_ms": pyg_milliseconds(graph)}
            for row in measured:
                row |= {"check_seconds": round(checked, 3)} | rival
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
    live.embed_new(x[0], rows=near[0])  # compiles
    wall, cpu = np.empty(calls), np.empty(calls)
    for call in range(calls):
        began, busy = time.perf_counter(), time.process_time()
        live.embed_new(x[call], rows=near[call])
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
    whole = grown_part(graph, new_nodes(graph, x, [near]), None).graph
    expected = model.transform(whole)[-1]
    return float(np.abs(model.embed_new(x[0], rows=near, graph=graph) - expected).max())


@torch.no_grad()
def pyg_milliseconds(graph: Graph) -> float:
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


def through_http(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Trains a small model, serves it beside a graph and asks for new nodes."""
    number, random = options.nodes[0], np.random.default_rng(1)
    build(folder / "store", number)
    graph, model = Graph.open(folder / "store"), model_of("cora")
    model.save(folder / "run", graph=graph)
    asked = [
        json.dumps(
            {
                "new": [
                    {
                        "features": random.standard_normal(FEATURES).round(4).tolist(),
                        "neighbors": random.choice(number, NEIGHBOURS, replace=False).tolist(),
                    }
                ]
            }
        ).encode()
        for _ in range(100)
    ]
    about = {"nodes": number, "features": FEATURES, "dim": DIM, "neighbours": NEIGHBOURS}
    if options.what == "http":
        service = Service(folder / "run", "--graph", str(folder / "store"), "--map", "none")
        try:
            times = asyncio.run(one_by_one(service.port, asked, options.calls))
        finally:
            service.stop()
        load = round(os.getloadavg()[0] / (os.cpu_count() or 1), 2)
        yield {
            "what": "http",
            **about,
            "calls": options.calls,
            **percentiles(times, "ms"),
            "load": load,
        }
        return
    for killed in (False, True):
        found = Load(folder, asked, options).measure(killed=killed)
        yield {"what": "killed" if killed else "load", **about, **found}


def streamed(number: int, folder: Path | None) -> Iterator[dict[str, Any]]:
    """Writes many embeddings and watches the memory that it takes beside the mapped ones."""
    random = np.random.default_rng(0)
    for kind in ("arrow", "parquet", "lancedb"):
        with tempfile.TemporaryDirectory(dir=folder) as room:
            file = Path(room) / "z.npy"
            z = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(number, DIM))
            block = random.standard_normal((1 << 16, DIM), dtype=np.float32)
            for start in range(0, number, len(block)):
                z[start : start + len(block)] = block[: number - start]
            z.flush()
            mapped = np.load(file, mmap_mode="r")
            del z, block
            out = Path(room) / ("out.arrow" if kind == "arrow" else "out")
            with PeakMemory() as peak:
                before = private_bytes()
                began = time.perf_counter()
                written = write_vectors(out, kind, batches(mapped, None), dim=DIM)
                seconds = time.perf_counter() - began
            assert written == number
            yield {
                "what": "vectors",
                "to": kind,
                "nodes": number,
                "dim": DIM,
                "vectors_bytes": number * DIM * 4,
                "private_bytes": max(0, peak["RssAnon"] - before),
                "write_seconds": round(seconds, 1),
            }


def private_bytes() -> int:
    """Returns the memory of this process that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def page(text: str, found: list[Any]) -> str:
    """Returns a page with its tables made from rows; of equal measurements the last counts."""
    keys = ("what", "nodes", "recipe", "to")
    latest = {tuple(row.get(key) for key in keys): row for row in found}
    tables = {
        "node": _node_table([row for (what, *_), row in latest.items() if what == "one new node"]),
        "http": _http_table([row for (what, *_), row in latest.items() if what in TITLES]),
        "vectors": _vectors_table([row for (what, *_), row in latest.items() if what == "vectors"]),
    }
    for name, table in tables.items():
        text = rows.placed(text, f"<!-- table: {name} -->\n", table, "<!-- end -->")
    return text


def _node_table(found: list[Any]) -> str:
    lines = [
        "| nodes | model | processor, p50 / p99 | wall, p50 / p99 | PyG, all nodes | difference |",
        "|---|---|---|---|---|---|",
    ]
    for row in sorted(found, key=lambda row: (row["recipe"], row["nodes"])):
        model = "2 × 128" if row["recipe"] != "default" else "`default`, 1,024"
        rival = f"{row['pyg_whole_graph_ms']:,.0f} ms" if "pyg_whole_graph_ms" in row else "–"
        exact = f"{row['largest_difference']:g}" if "largest_difference" in row else "–"
        lines.append(
            f"| {row['nodes']:,} | {model} | {row['p50_cpu_ms']:.1f} / {row['p99_cpu_ms']:.1f} ms "
            f"| {row['p50_ms']:.1f} / {row['p99_ms']:.1f} ms | {rival} | {exact} |"
        )
    return "\n".join(lines) + "\n"


def _http_table(found: list[Any]) -> str:
    lines = [
        "| | clients | requests per second | p50 / p99 | errors | wrong | refused | memory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(found, key=lambda row: list(TITLES).index(row["what"])):
        rate = f"{row['per_second']:,.0f}" if "per_second" in row else "–"
        memory = "–"
        if "memory_after" in row:
            memory = f"{row['memory_before'] / 2**20:.0f} → {row['memory_after'] / 2**20:.0f} MiB"
        counts = [str(row.get(key, "–")) for key in ("errors", "wrong", "refused")]
        lines.append(
            f"| {TITLES[row['what']]} | {row.get('clients', 1)} | {rate} | {row['p50_ms']:.1f} / "
            f"{row['p99_ms']:.1f} ms | {' | '.join(counts)} | {memory} |"
        )
    return "\n".join(lines) + "\n"


def _vectors_table(found: list[Any]) -> str:
    lines = ["| `--to` | vectors | size | memory beside them | seconds |", "|---|---|---|---|---|"]
    lines += [
        f"| `{row['to']}` | {row['nodes']:,} × {row['dim']} | {row['vectors_bytes'] / 1e9:.1f} GB "
        f"| {row['private_bytes'] / 1e6:,.0f} MB | {row['write_seconds']:,.0f} |"
        for row in found
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
