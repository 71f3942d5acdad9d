"""How long an update of a run takes beside embedding anew, and whether downstream models survive.

usage: python -m benchmarks.update speed [--nodes 1000000] [--anywhere 0 0.01 1] [--folder DIR]
           [--out FILE]
       python -m benchmarks.update commands [--nodes 1000000] [--anywhere 0 0.01 1] [--folder DIR]
           [--out FILE]
       python -m benchmarks.update aligned [--graphs cora_ml amazon_photo nba wisconsin]
           [--seeds 3] [--more 0.2 1] [--folder DIR] [--out FILE]
       python -m benchmarks.update page [--check]

`speed`: a graph of degree 20 with 64 features that grows in time: a node links to ten of the 2,000
nodes before it. One per cent of new nodes is added by `Run.update`, from tables, to a run with
two layers of 128, whose graph is mapped from a store. `--anywhere` is the share of the new links
that lead to any node of the graph instead of a recent one: two hops from a thousand such links is
most of the graph, and all of it must then be computed to be exact. Then as many nodes come again:
the second update has what the first one kept. Beside each, in the same process, the grown graph is
embedded whole and written, and the two are compared. Both were called once before on a small
change, which compiles loops.

`commands`: the same as whole commands, from the start of a process to its end: `graphcl update`,
and `graphcl embed` of the grown graph from a store, from Parquet and from CSV. Rows have seconds on
the wall and of the processor.

`aligned`: four fifths of a graph's nodes, drawn at random, are trained on; a classifier learns from
half of them. Then the rest of the nodes is added, and the run is trained on for a share of its
epochs (`--more`). Rows have the classifier's accuracy on the other half before and after, with the
alignment and without it. `page` writes the tables of docs/research/speed.md from the rows; with
`--check` it compares and writes nothing.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch

import graphcl
from benchmarks import rows
from benchmarks.update_page import page
from graphcl.datasets import load_dataset
from graphcl.datasets.synthetic import synthetic_graph
from graphcl.estimator.model import GraphCL
from graphcl.files.atomic import sync, write_whole
from graphcl.graphs.graph import Graph
from graphcl.runs.files import read_embeddings

CPU = torch.device("cpu")
DEGREE, WINDOW, FEATURES, DIM, LAYERS = 20, 2000, 64, 128, 2
GRAPHS = ("cora_ml", "amazon_photo", "nba", "wisconsin")
PAGE = Path(__file__).parents[1] / "docs/research/speed.md"
RESULTS = Path(__file__).parent / "results/update.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["speed", "commands", "aligned", "page"])
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--anywhere", type=float, nargs="+", default=[0.0, 0.01, 1.0])
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--more", type=float, nargs="+", default=[0.2, 1.0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("update.jsonl"))
    options = parser.parse_args()
    if options.what == "page":
        text = page(PAGE.read_text(), rows.read(RESULTS))
        if options.check:
            raise SystemExit(0 if text == PAGE.read_text() else f"{PAGE} is stale")
        write_whole(PAGE, text)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        if options.what == "speed":
            found = speed(Path(folder), options.nodes, options.anywhere)
        elif options.what == "commands":
            found = commands(Path(folder), options.nodes, options.anywhere)
        else:
            found = (
                row
                for name in options.graphs
                for seed in range(options.seeds)
                for row in aligned(Path(folder), name, seed, options.more)
            )
        for row in found:
            rows.append(options.out, row | rows.provenance(CPU))
            print(row, flush=True)


def links(random: Any, first: int, last: int, anywhere: float = 0.0) -> Any:
    """Returns the links of nodes to ten nodes before them, ``[2, links]``."""
    ends = np.repeat(np.arange(first, last), DEGREE // 2)
    recent = np.maximum(ends - random.integers(1, WINDOW, len(ends)), 0)
    far = random.random(len(ends)) < anywhere
    recent[far] = random.integers(0, first, int(far.sum()))
    return np.stack([ends, recent])


def trained(folder: Path, number: int) -> tuple[Any, GraphCL, Path]:
    """Returns a graph that is mapped from ``store``, a model, and its run with embeddings."""
    random = np.random.default_rng(0)
    x = random.standard_normal((number, FEATURES), dtype=np.float32)
    Graph.from_edge_index(links(random, 1, number), x, name="time").save(folder / "store")
    del x
    graph = Graph.open(folder / "store")
    small = synthetic_graph(2000, 8000, FEATURES, 5, seed=0)
    own: Any = {"dim": DIM, "layers": LAYERS, "feature_scaling": "none", "epochs": 1}
    model = GraphCL("cora", encoder="mean", **own, device="cpu").fit(small)
    model.save(folder / "run", graph=graph)
    return graph, model, folder / "run"


def speed(folder: Path, number: int, shares: list[float]) -> Any:
    """Yields two rows for each share of links that lead anywhere: a first update, and a second."""
    random = np.random.default_rng(1)
    graph, model, run = trained(folder, number)
    more = number // 100
    graphcl.Run(run, graph=graph, device="cpu").update(
        **tables(random, number, 100, 0.0)
    )  # compiles
    for share in shares:
        graphcl.Run(run).rollback(0)
        for step, before in enumerate((number, number + more)):
            new = tables(random, before, more, share)
            began, busy = time.perf_counter(), time.process_time()
            trained_on = None if step else graph
            done = graphcl.Run(run, graph=trained_on, device="cpu").update(keep=2, **new)
            seconds, busy = time.perf_counter() - began, time.process_time() - busy
            whole = Graph.open(done.path / "graph")
            whole.check()
            began, busy_anew = time.perf_counter(), time.process_time()
            z = model.transform(whole)
            anew = time.perf_counter() - began
            np.save(folder / "anew.npy", z)
            sync(folder / "anew.npy")
            written = time.perf_counter() - began - anew
            busy_anew = time.process_time() - busy_anew
            kept = read_embeddings(done.path)
            steps = done.about["seconds"]
            yield {
                "what": "speed",
                **_sizes(number, share, more),
                "second": bool(step),
                "embedded": done.about["embedded"],
                "seconds": {key: round(value, 3) for key, value in steps.items()},
                "update_seconds": round(seconds, 2),
                "anew_seconds": round(anew, 2),
                "anew_write_seconds": round(written, 2),
                "times_faster": round((anew + written) / seconds, 1),
                "processor_seconds": {"update": round(busy, 2), "anew": round(busy_anew, 2)},
                "times_less_work": round(busy_anew / busy, 1),
                "largest_difference": float(max_difference(z, kept)),
                "version_bytes": own_bytes(done.path),
                "load": round(os.getloadavg()[0] / (os.cpu_count() or 1), 2),
            }


def _sizes(number: int, share: float, more: int) -> dict[str, Any]:
    sizes = {"nodes": number, "degree": DEGREE, "features": FEATURES, "dim": DIM, "layers": LAYERS}
    return {**sizes, "new_nodes": more, "anywhere": share}


def own_bytes(path: Path) -> int:
    """Returns the bytes of the files that a version shares with no other."""
    files = (file.stat() for file in path.rglob("*") if file.is_file())
    return sum(one.st_size for one in files if one.st_nlink == 1)


def commands(folder: Path, number: int, shares: list[float]) -> Any:
    """Yields a row for each share: a first update and a second one, and embedding anew."""
    import pyarrow.parquet

    random = np.random.default_rng(1)
    _, _, run = trained(folder, number)
    more = number // 100
    cli = [sys.executable, "-m", "graphcl"]
    rest: list[str | Path] = ["--graph", folder / "store", "--keep", "2"]
    for share in shares:
        graphcl.Run(run).rollback(0) if (run / "versions").exists() else None
        taken = {}
        for name, before in (("first update", number), ("second update", number + more)):
            new = tables(random, before, more, share)
            for kind, table in new.items():
                pyarrow.parquet.write_table(table, folder / f"{kind}.parquet")
            words = ["update", run, "--nodes", folder / "nodes.parquet"]
            words += [
                "--edges",
                folder / "edges.parquet",
                *(rest if before == number else rest[2:]),
            ]
            taken[name] = timed([*cli, *words])
        version = run / "versions" / (run / "versions/current").read_text().strip()
        grown = Graph.open(version / "graph")
        out: list[str | Path] = ["--out", folder / "anew.npy", "--overwrite"]
        taken["from a store"] = timed([*cli, "embed", run, version / "graph", *out])
        difference = max_difference(
            np.load(folder / "anew.npy", mmap_mode="r"), read_embeddings(version)
        )
        if share == shares[0]:
            taken |= from_tables(folder, run, grown)
        taken["import torch"] = timed([sys.executable, "-c", "import torch"])
        yield {
            "what": "commands",
            **_sizes(number, share, more),
            "wall_seconds": {key: round(one[0], 2) for key, one in taken.items()},
            "processor_seconds": {key: round(one[1], 2) for key, one in taken.items()},
            "largest_difference": float(difference),
            "load": round(os.getloadavg()[0] / (os.cpu_count() or 1), 2),
        }


def from_tables(folder: Path, run: Path, graph: Graph) -> dict[str, tuple[float, float]]:
    """Returns how long it takes to embed a graph that comes as tables."""
    import pyarrow.csv
    import pyarrow.parquet

    ends = graph.edge_index()
    once = ends[:, ends[0] < ends[1]]
    columns = {f"f{k}": np.asarray(graph.x)[:, k] for k in range(FEATURES)}
    whole = {
        "edges": pyarrow.table({"source": once[0], "target": once[1]}),
        "nodes": pyarrow.table({"id": np.arange(graph.num_nodes), **columns}),
    }
    writers = {"parquet": pyarrow.parquet.write_table, "csv": pyarrow.csv.write_csv}
    taken = {}
    for suffix, write in writers.items():
        files = {kind: folder / f"all_{kind}.{suffix}" for kind in whole}
        for kind, table in whole.items():
            write(table, files[kind])
        words = ["embed", run, files["edges"], "--nodes", files["nodes"]]
        words += ["--out", folder / "anew.npy", "--overwrite"]
        taken[f"from {suffix}"] = timed([sys.executable, "-m", "graphcl", *words])
        for file in files.values():
            file.unlink()
    return taken


def timed(words: list[Any]) -> tuple[float, float]:
    """Runs a command; returns its seconds on the wall and of the processor."""
    before, began = os.times(), time.perf_counter()
    subprocess.run([str(word) for word in words], check=True, capture_output=True)
    after, seconds = os.times(), time.perf_counter() - began
    busy = after.children_user + after.children_system
    return seconds, busy - before.children_user - before.children_system


def tables(random: Any, number: int, more: int, anywhere: float) -> dict[str, Any]:
    """Returns tables of new nodes and of their links."""
    columns = {f"f{k}": random.standard_normal(more, dtype=np.float32) for k in range(FEATURES)}
    ends = links(random, number, number + more, anywhere)
    return {
        "nodes": pyarrow.table({"id": np.arange(number, number + more), **columns}),
        "edges": pyarrow.table({"source": ends[0], "target": ends[1]}),
    }


def max_difference(first: Any, second: Any) -> float:
    """Returns the largest difference of two tables, block by block."""
    assert first.shape == second.shape
    blocks = range(0, len(first), 1 << 16)
    return max(float(np.abs(first[i : i + 65536] - second[i : i + 65536]).max()) for i in blocks)


def aligned(folder: Path, name: str, seed: int, shares: list[float]) -> Any:
    """Yields a row for each share of epochs, of a graph four fifths of which are trained on."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    graph = load_dataset(name)
    assert isinstance(graph, Graph)
    assert graph.y is not None
    random = np.random.default_rng(seed)
    order = random.permutation(graph.num_nodes)
    first = np.sort(order[: graph.num_nodes * 4 // 5])
    later = np.sort(order[graph.num_nodes * 4 // 5 :])
    edges = graph.edge_index()
    known = np.isin(edges, first).all(axis=0)
    inside = np.searchsorted(first, edges[:, known])
    old = Graph.from_edge_index(inside, graph.x[first], node_ids=first, name=name)
    model = GraphCL(seed=seed, device="cpu").fit(old)
    run = folder / f"{name}-{seed}"
    model.save(run, graph=old)
    before = np.load(run / "embeddings.npy")
    labels, of_new = graph.y[first], graph.y[later]
    half = random.permutation(len(first))[: len(first) // 2]
    rest = np.setdiff1d(np.arange(len(first)), half)
    downstream = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    downstream.fit(before[half], labels[half])

    def score(z: Any) -> dict[str, float]:
        new = z[len(first) :]
        found = {"known": downstream.score(z[rest], labels[rest])}
        return found | ({"new": downstream.score(new, of_new)} if len(new) else {})

    new_edges = pyarrow.table({"source": edges[0, ~known], "target": edges[1, ~known]})
    given: Any = {"nodes": graph.x[later], "node_ids": later, "edges": new_edges}
    embedded = graphcl.Run(run, graph=old, device="cpu").update(**given)
    updated = score(np.load(embedded.path / "embeddings.npy"))
    for share in shares:
        graphcl.Run(run).rollback(embedded.version)
        epochs = max(1, round(share * len(model.history_)))
        trained = graphcl.Run(run, device="cpu").update(retrain=True, epochs=epochs)
        after = np.load(trained.path / "embeddings.npy")
        fitted: Any = GraphCL.load(run, device="cpu")._fitted
        turn, shift = (one.numpy() for one in fitted.alignment.tensors().values())
        assert trained.drift is not None
        yield {
            "what": "aligned",
            "graph": name,
            "seed": seed,
            "more": share,
            "nodes": graph.num_nodes,
            "new_nodes": len(later),
            "epochs": len(model.history_),
            "more_epochs": epochs,
            "accuracy": {
                "before": score(before),
                "updated": updated,
                "retrained": score(after),
                "retrained_not_aligned": score((after - shift) @ turn.T),
            },
            "neighbours_kept": trained.drift["kept"],
        }
    shutil.rmtree(run)


if __name__ == "__main__":
    main()
