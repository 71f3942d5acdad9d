"""How long an update of a run takes beside embedding anew, and whether downstream models survive.

usage: python -m benchmarks.update speed [--nodes 1000000] [--anywhere 0 0.01 1] [--folder DIR]
           [--out FILE]
       python -m benchmarks.update aligned [--graphs cora_ml amazon_photo nba wisconsin]
           [--seeds 3] [--more 0.2 1] [--folder DIR] [--out FILE]
       python -m benchmarks.update page [--check]

`speed`: a graph of degree 20 with 64 features that grows in time: a node links to ten of the 2,000
nodes before it. One per cent of new nodes is added by `graphcl.update`, from tables, to a run with
two layers of 128, whose graph is mapped from a store. `--anywhere` is the share of the new links
that lead to any node of the graph instead of a recent one: two hops from a thousand such links is
most of the graph, and all of it must then be computed to be exact. Beside it, in the same process,
the grown graph is embedded whole, and the two are compared. Both were called once before on a small
change, which compiles loops.

`aligned`: four fifths of a graph's nodes, drawn at random, are trained on; a classifier learns from
half of them. Then the rest of the nodes is added, and the run is trained on for a share of its
epochs (`--more`). Rows have the classifier's accuracy on the other half before and after, with the
alignment and without it. `page` writes the tables of docs/updating.md from the committed rows; with
`--check` it compares and writes nothing.
"""

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch

import graphcl
from benchmarks import rows
from graphcl.datasets import load_dataset
from graphcl.datasets.synthetic import synthetic_graph
from graphcl.estimator import GraphCL
from graphcl.files.atomic import sync, write_whole
from graphcl.graphs.graph import Graph

CPU = torch.device("cpu")
DEGREE, WINDOW, FEATURES, DIM, LAYERS = 20, 2000, 64, 128, 2
GRAPHS = ("cora_ml", "amazon_photo", "nba", "wisconsin")
PAGE = Path(__file__).parents[1] / "docs/updating.md"
RESULTS = Path(__file__).parent / "results/update.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["speed", "aligned", "page"])
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


def speed(folder: Path, number: int, shares: list[float]) -> Any:
    """Yields a row for each share of links that lead anywhere."""
    random = np.random.default_rng(0)
    x = random.standard_normal((number, FEATURES), dtype=np.float32)
    Graph.from_edge_index(links(random, 1, number), x, name="time").save(folder / "store")
    del x
    graph = Graph.open(folder / "store")
    small = synthetic_graph(2000, 8000, FEATURES, 5, seed=0)
    own: Any = {"dim": DIM, "layers": LAYERS, "feature_scaling": "none", "epochs": 1}
    model = GraphCL("cora", encoder="mean", **own, device="cpu").fit(small)
    run = folder / "run"
    model.save(run, graph=graph)
    more = number // 100
    graphcl.update(run, graph=graph, **tables(random, number, 100, 0.0), device="cpu")  # compiles
    for share in shares:
        graphcl.rollback(run, 0)
        new = tables(random, number, more, share)
        began = time.perf_counter()
        done = graphcl.update(run, graph=graph, **new, device="cpu", keep=1)
        seconds = time.perf_counter() - began
        whole = Graph.open(done.path / "graph")
        whole.check()
        began = time.perf_counter()
        z = model.transform(whole)
        anew = time.perf_counter() - began
        np.save(folder / "anew.npy", z)
        sync(folder / "anew.npy")
        written = time.perf_counter() - began - anew
        kept = np.load(done.path / "embeddings.npy", mmap_mode="r")
        steps = done.about["seconds"]
        size = sum(file.stat().st_size for file in done.path.rglob("*") if file.is_file())
        yield {
            "what": "speed",
            "nodes": number,
            "degree": DEGREE,
            "features": FEATURES,
            "dim": DIM,
            "layers": LAYERS,
            "new_nodes": more,
            "anywhere": share,
            "embedded": done.about["embedded"],
            "seconds": {key: round(value, 3) for key, value in steps.items()},
            "update_seconds": round(seconds, 2),
            "anew_seconds": round(anew, 2),
            "anew_write_seconds": round(written, 2),
            "times_faster": round(anew / steps["embedding"], 1),
            "largest_difference": float(max_difference(z, kept)),
            "version_bytes": size,
            "load": round(os.getloadavg()[0] / (os.cpu_count() or 1), 2),
        }


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
    embedded = graphcl.update(run, graph=old, **given, device="cpu")
    updated = score(np.load(embedded.path / "embeddings.npy"))
    for share in shares:
        graphcl.rollback(run, embedded.version)
        epochs = max(1, round(share * len(model.history_)))
        trained = graphcl.update(run, retrain=True, epochs=epochs, device="cpu")
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


def page(text: str, found: list[Any]) -> str:
    """Returns a page with its tables made from rows; of equal measurements the last counts."""
    keys = ("what", "nodes", "anywhere", "graph", "seed", "more")
    latest = {tuple(row.get(key) for key in keys): row for row in found}
    tables_of = {
        "speed": _speed_table([row for (what, *_), row in latest.items() if what == "speed"]),
        "aligned": _aligned_table([row for (what, *_), row in latest.items() if what == "aligned"]),
    }
    for name, table in tables_of.items():
        head, tail = f"<!-- table: {name} -->\n", "<!-- end -->"
        before, _, rest = text.partition(head)
        text = before + head + table + tail + rest.partition(tail)[2]
    return text


def _speed_table(found: list[Any]) -> str:
    lines = [
        "| links that lead anywhere | embedded again | embedding, of these | of all | times faster "
        "| whole update | difference |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {100 * row['anywhere']:g} % | {row['embedded']:,} | "
        f"{row['seconds']['embedding']:.2f} s | {row['anew_seconds']:.1f} s | "
        f"{row['times_faster']:.1f} | {row['update_seconds']:.1f} s | "
        f"{row['largest_difference']:g} |"
        for row in sorted(found, key=lambda row: row["anywhere"])
    ]
    return "\n".join(lines) + "\n"


def _aligned_table(found: list[Any]) -> str:
    lines = [
        "| graph | more epochs | before | updated | trained on | without alignment | "
        "new nodes: updated | trained on | without alignment |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    columns = (
        ("before", "known"),
        ("updated", "known"),
        ("retrained", "known"),
        ("retrained_not_aligned", "known"),
        ("updated", "new"),
        ("retrained", "new"),
        ("retrained_not_aligned", "new"),
    )
    for name, more in dict.fromkeys((row["graph"], row["more"]) for row in found):
        own = [row["accuracy"] for row in found if (row["graph"], row["more"]) == (name, more)]
        cells = [100 * np.mean([one[step][which] for one in own]) for step, which in columns]
        lines.append(
            f"| {name} | {100 * more:g} % | " + " | ".join(f"{cell:.1f} %" for cell in cells) + " |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
