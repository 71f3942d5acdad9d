"""Groups after a training, measured on the gallery's graphs.

usage: python -m benchmarks.answers cluster --out ROWS.jsonl [--graphs ...] [--cache FOLDER]
       python -m benchmarks.answers page [--check]

`cluster`: one row per graph: NMI of k-means with as many clusters as classes, and with the number
that the silhouette chooses, beside k-means on the raw features.

The encoder is trained by the recipe `default`. ``--cache`` keeps embeddings in a folder. Rows that
are already in ROWS.jsonl are not computed again. The graphs are those of ``graphs/`` in the folder
GRAPHCL_DATA names. `page` writes the tables in docs/research/answers.md from the committed rows,
with those of `benchmarks.predictions`.
"""

import argparse
import functools
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
import torch
from sklearn.metrics import normalized_mutual_info_score as nmi

from benchmarks import predictions
from benchmarks.rows import append, placed, provenance, read
from graphcl.answers.grouping import cluster as group_nodes
from graphcl.datasets import graph_files, read_gallery_graph
from graphcl.devices import resolve_device
from graphcl.errors import TrainingWarning
from graphcl.estimator.model import GraphCL
from graphcl.files.atomic import write_whole
from graphcl.graphs.graph import Graph

SMALL = (
    *("nba", "wisconsin", "books_anomaly", "chameleon_filtered", "fb100_reed", "usa_airports_uat"),
    *("cora_ml", "acm_amgcn", "humloc_multilabel", "acm_heco", "blogcatalog_attr"),
    *("fb100_johnshopkins", "dblpv7_multilabel", "twitch_engb", "amazon_photo", "actor"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=[*sorted(PARTS), "page"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--graphs", nargs="+", default=list(SMALL))
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.what == "page":
        text = page(PAGE.read_text())
        if options.check:
            raise SystemExit(0 if text == PAGE.read_text() else f"{PAGE} is stale")
        write_whole(PAGE, text)
        return
    if options.out is None:
        parser.error("--out is required")
    warnings.simplefilter("ignore", TrainingWarning)
    device = resolve_device(options.device)
    files = graph_files(Path(os.environ.get("GRAPHCL_DATA", ".")) / "graphs")
    found = read(options.out) if options.out.exists() else []
    done = {_key(row) for row in found if "failed" not in row}
    for name in options.graphs:
        for row in PARTS[options.what](files[name], options, done):
            row = {"what": options.what, "graph": name, **row, **provenance(device)}
            append(options.out, row)
            print({key: row[key] for key in row if key in SHOWN or "nmi" in key}, flush=True)


SHOWN = ("graph", "classes")


def _key(row: Any) -> tuple[Any, ...]:
    return row["what"], row["graph"]


def new_model(options: argparse.Namespace) -> GraphCL:
    """Returns the model of all rows: what a user gets who sets nothing."""
    return GraphCL("default", seed=0, device=options.device)


def embed(graph: Graph, options: argparse.Namespace) -> np.ndarray:
    """Returns embeddings, from the cache if they are there."""
    kept = options.cache / f"{graph.name}.npy" if options.cache else None
    if kept is not None and kept.exists():
        return np.load(kept)
    z = new_model(options).fit_transform(graph)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.save(kept, z)
    return z


def cluster(path: Path, options: argparse.Namespace, done: Any) -> Iterator[dict[str, Any]]:
    """Yields one row: NMI with the classes of groups by embeddings and by raw features."""
    graph = read_gallery_graph(path)
    if ("cluster", graph.name) in done or graph.y is None or graph.y.ndim == 2:
        return  # groups exclude each other, several labels do not
    z, labelled = embed(graph, options), graph.y >= 0
    classes = len(np.unique(graph.y[labelled]))
    raw = graph.x.toarray() if scipy.sparse.issparse(graph.x) else np.asarray(graph.x)
    row: dict[str, Any] = {"classes": classes}
    for name, rows in (("embeddings", z), ("features", raw)):
        began = time.perf_counter()
        for how, count in (("classes", classes), ("chosen", None)):
            found = group_nodes(rows, count)
            row[f"nmi_{name}_{how}"] = float(nmi(graph.y[labelled], found.assigned[labelled]))
            row[f"groups_{name}_{how}"] = len(found)
        row[f"seconds_{name}"] = round(time.perf_counter() - began, 3)
    found = group_nodes(z, method="hdbscan")
    row["nmi_embeddings_hdbscan"] = float(nmi(graph.y[labelled], found.assigned[labelled]))
    row["groups_embeddings_hdbscan"] = len(found)
    row["outside_hdbscan"] = float((found.assigned < 0).mean())
    recipe = asdict(new_model(options).complete_recipe())
    yield {**row, "recipe": recipe, "seed": 0}


def page(text: str) -> str:
    """Returns the page with its tables made anew from the committed rows."""
    for name, (table, rows) in TABLES.items():
        made = table(read(RESULTS / rows))
        text = placed(text, f"<!-- rows: {name} -->\n", made, "<!-- end of rows -->")
    return text


def _table(head: list[str], body: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *body]]
    return "\n" + "\n".join(lines) + "\n\n"


def _mean(rows: list[Any], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


def _cluster_table(rows: list[Any]) -> str:
    names = ("nmi_embeddings_classes", "nmi_features_classes", "nmi_embeddings_chosen")
    names += ("nmi_embeddings_hdbscan",)
    body = [[r["graph"], str(r["classes"]), *(f"{r[name]:.3f}" for name in names)] for r in rows]
    body.append(["mean", "", *(f"{_mean(rows, name):.3f}" for name in names)])
    head = ["graph", "classes", "k-means, embeddings", "k-means, features"]
    return _table([*head, "number chosen", "HDBSCAN"], body)


PAGE = Path(__file__).parents[1] / "docs/research/answers.md"
RESULTS = Path(__file__).parent / "results"
TABLES: dict[str, Any] = {
    "cluster": (_cluster_table, "answers_cluster.jsonl"),
    "predict": (functools.partial(predictions.page_table, graphs=False), "predictions.jsonl"),
    "predict-test": (predictions.page_table, "predictions_test.jsonl"),
}
PARTS: dict[str, Any] = {"cluster": cluster}

if __name__ == "__main__":
    torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "2"))))
    main()
