"""Scalings of features, compared by short trainings on the gallery's graphs.

usage: python -m benchmarks.scaling --out ROWS.jsonl [--graphs nba tolokers ...] [--runs 3]
           [--dim 64] [--epochs 20] [--device cpu] [--budget SECONDS]

One row per graph, scaling and seed: the recipe `default` with the residual encoder, small and
short, scored by the protocol of `graphcl compare`. `none`, `row` and `auto` are the values of
``feature_scaling``; `standardise` is each column by its mean and deviation (of a sparse table, by
its deviation), with ``feature_scaling = "none"``. Rows that are already in ROWS.jsonl are not
computed again. The graphs are those of ``graphs/`` in the folder GRAPHCL_DATA names.
"""

import argparse
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import scipy.sparse

from benchmarks.gallery import show
from graphcl.datasets import graph_files, read_gallery_graph
from graphcl.devices import resolve_device
from graphcl.graphs.graph import Graph
from graphcl.research.comparison import compare
from graphcl.research.systems.system import System
from graphcl.research.trials import find_system

SCALINGS = ("none", "row", "auto")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--graphs", nargs="+")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--budget", type=float, default=float("inf"))
    options = parser.parse_args()
    files = graph_files(Path(os.environ.get("GRAPHCL_DATA", ".")) / "graphs")
    short = {
        "encoder": "residual",
        "dim": str(options.dim),
        "epochs": str(options.epochs),
        "batch_nodes": "1024",
    }
    systems = [_system(name, {**short, "feature_scaling": name}) for name in SCALINGS]
    columns = _system("standardise", {**short, "feature_scaling": "none"})
    shared: Any = {
        "seeds": range(options.runs),
        "device": resolve_device(options.device),
        "budget": options.budget,
        "on_progress": show,
    }
    for name in options.graphs or list(files):
        read = partial(read_gallery_graph, files[name])
        found = compare({name: read}, systems, options.out, **shared)
        found += compare({name: lambda r=read: standardised(r())}, [columns], options.out, **shared)
        scores: dict[str, list[float]] = {}
        for row in found:
            if "failed" not in row:
                scores.setdefault(str(row["system"]), []).append(float(row["score"]))  # type: ignore[arg-type]
        print(name, {system: round(fmean(of), 4) for system, of in scores.items()}, flush=True)


def _system(label: str, changed: dict[str, str]) -> System:
    return replace(find_system("graphcl"), label=label, changed=changed)


def standardised(graph: Graph) -> Graph:
    """Returns the graph with every column divided by its deviation; dense ones have mean 0."""
    if scipy.sparse.issparse(graph.x):
        wide = graph.x.astype(np.float64)
        mean = np.asarray(wide.mean(axis=0)).ravel()
        square = np.asarray((wide * wide).mean(axis=0)).ravel()
        deviation = np.sqrt(np.maximum(square - mean**2, 0))
        x = wide.copy()
        x.data /= np.where(deviation > 0, deviation, 1)[x.indices]
        return graph.replace(x=x.astype(np.float32))
    wide = np.asarray(graph.x, np.float64)
    deviation = wide.std(axis=0)
    scaled = (wide - wide.mean(axis=0)) / np.where(deviation > 0, deviation, 1)
    return graph.replace(x=scaled.astype(np.float32))


if __name__ == "__main__":
    main()
