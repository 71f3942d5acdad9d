"""Time and memory of a typed graph against the plain graph of the same size.

usage: python -m benchmarks.typed_size --out ROWS.jsonl [--nodes 1000000] [--edges 10000000]
           [--features 64] [--dim 128] [--steps 20] [--device cpu] [--tables]

The typed graph has four types and six relations (`benchmarks.typed_graphs`); the plain one
is the same graph, flattened, with the features of all types in the same columns. Each is measured
in a process of its own: seconds to make the graph from edge lists, seconds of a step of sampled
training and of an epoch of such steps, seconds of exact embeddings of all nodes, and the peak of
resident memory. Seconds are of the wall and of the processor: on a machine that does other work,
look at the latter, with ``OMP_NUM_THREADS=1``, because threads that wait for others count there.

With ``--tables`` the graph is written as Parquet files, and `graphcl build` makes a store of them:
its seconds, its peak of memory, and the bytes of the tables and of the store.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.rows import append, provenance
from benchmarks.typed_graphs import typed_graph_of_size
from graphcl import Graph, GraphCL
from graphcl.devices import resolve_device
from graphcl.graphs.conversion import offsets
from graphcl.memory import peak_resident_bytes


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Returns what a function returns, and its seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    found = work()
    seconds = time.perf_counter() - wall, time.process_time() - processor
    return found, {"wall": round(seconds[0], 3), "processor": round(seconds[1], 3)}


def edge_lists(graph: Graph) -> dict[Any, Any]:
    """Returns the edges of each relation, each undirected edge once."""
    found = {}
    for key, one in graph.relations.items():
        ends = one.edge_index()
        if one.edge_ids is not None:
            ends = ends[:, np.unique(one.edge_ids, return_index=True)[1]]
        found[key] = ends
    return found


def write_tables(folder: Path, options: argparse.Namespace) -> None:
    """Writes the tables of the typed graph, and those of the plain one, as Parquet files."""
    import pyarrow
    import pyarrow.parquet

    def write(name: str, columns: dict[str, Any]) -> None:
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"{name}.parquet")

    made = typed_graph_of_size(options.nodes, options.edges, options.features)
    starts, joined, tables = offsets(made), [], []
    for name, one in made.nodes.items():
        assert isinstance(one.x, np.ndarray)
        ids = np.arange(one.num_nodes) + starts[name]
        columns = {f"x{place}": column for place, column in enumerate(one.x.T)}
        write(f"nodes_{name}", {"id": ids, **columns})
        tables.append(one.x)
    for key, ends in edge_lists(made).items():
        moved = ends + np.array([[starts[key[0]]], [starts[key[2]]]])
        write(f"edges_{key[1]}", {"source": moved[0], "target": moved[1]})
        joined.append(moved)
    whole = {f"x{place}": column for place, column in enumerate(np.concatenate(tables).T)}
    write("nodes", {"id": np.arange(options.nodes), **whole})
    ends = np.concatenate(joined, axis=1)
    write("edges", {"source": ends[0], "target": ends[1]})


def measure_tables(kind: str, folder: Path) -> dict[str, Any]:
    """Returns the figures of building a store from tables, in this process."""
    from graphcl.tabular.build import build_store
    from graphcl.tabular.options import TableOptions

    def named(what: str) -> dict[str, str]:
        files = sorted(folder.glob(f"{what}_*.parquet"))
        return {file.stem.removeprefix(f"{what}_"): str(file) for file in files}

    out = folder / f"store-{kind}"
    if kind == "typed":
        given = TableOptions(nodes=named("nodes"), edges=named("edges"))
        read = [*given.nodes.values(), *given.edges.values()]
        _, build = timed(lambda: build_store(None, given, out=out))
    else:
        plain = TableOptions(nodes=str(folder / "nodes.parquet"))
        read = [plain.nodes, str(folder / "edges.parquet")]
        _, build = timed(lambda: build_store(read[1], plain, out=out))
    files = [file for file in out.rglob("*") if file.is_file()]
    return {
        "kind": kind,
        "build_from_tables": build,
        "table_bytes": sum(Path(file).stat().st_size for file in read),
        "store_bytes": sum(file.stat().st_size for file in files),
        "peak_memory_bytes": peak_resident_bytes(),
    }


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
        graph, build = timed(lambda: Graph.from_edges(tables, relations))
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
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--only", choices=("plain", "typed"), help="measure in this process")
    parser.add_argument("--folder", type=Path, help="where the tables are")
    options = parser.parse_args()
    if options.only:
        found = (
            measure_tables(options.only, options.folder)
            if options.folder
            else measure(options.only, options)
        )
        print(json.dumps(found))
        return
    about = {key: getattr(options, key) for key in ("nodes", "edges", "features", "dim", "steps")}
    about["threads"] = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        added = ["--folder", folder] if options.tables else []
        if options.tables:
            write_tables(Path(folder), options)
        for kind in ("plain", "typed"):
            command = [sys.executable, "-m", "benchmarks.typed_size", *sys.argv[1:], *added]
            done = subprocess.run(
                [*command, "--only", kind], check=True, capture_output=True, text=True
            )
            row = json.loads(done.stdout.splitlines()[-1])
            append(options.out, about | row | provenance(resolve_device(options.device)))
            print(row, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
