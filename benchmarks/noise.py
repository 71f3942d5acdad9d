"""How much is lost when columns of noise are added to a graph's features.

usage: python -m benchmarks.noise run --out ROWS.jsonl [--graphs nba wisconsin ...] [--device cpu]
       python -m benchmarks.noise show [--out benchmarks/results/noise.jsonl]

0, 20 and 100 columns of normal noise stand beside the features of ten graphs of the gallery, as
they might in a table that nobody has tidied. `default`, the raw features and boosted trees are
scored by the protocol of `graphcl compare`. A row is one of its rows; its ``graph`` is a graph's
name, a plus and the number of columns. `show` prints the mean scores.
"""

import argparse
import os
from collections import defaultdict
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import scipy.sparse

from benchmarks.rows import read
from graphcl.datasets import graph_files, read_gallery_graph
from graphcl.devices import resolve_device
from graphcl.graphs.graph import Graph
from graphcl.research.comparison import compare, read_systems
from graphcl.research.output import markdown_table
from graphcl.research.rows import Progress, Row, number, text

COLUMNS = (0, 20, 100)
SYSTEMS = ("graphcl", "raw", "trees")
GRAPHS = (
    "nba",
    "books_anomaly",
    "usa_airports_uat",
    "humloc_multilabel",
    "fb100_reed",
    "wisconsin",
    "chameleon_filtered",
    "acm_amgcn",
    "cora_ml",
    "twitch_engb",
)
RESULTS = Path(__file__).parent / "results/noise.jsonl"


def noisy(path: Path, columns: int) -> Graph:
    """Reads a graph and adds columns of normal noise, the same ones every time."""
    graph = read_gallery_graph(path)
    noise = np.random.default_rng(columns).normal(size=(graph.num_nodes, columns))
    noise = noise.astype(np.float32)
    if scipy.sparse.issparse(graph.x):
        return graph.replace(x=scipy.sparse.hstack([graph.x, noise], format="csr"))
    return graph.replace(x=np.hstack([np.asarray(graph.x, np.float32), noise]))


def table(found: list[Row]) -> str:
    """Returns mean scores by system and number of columns, over the graphs that have them all."""
    scores: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in found:
        if "failed" not in row:
            name, _, columns = text(row, "graph").partition("+")
            scores[text(row, "system"), columns][name].append(number(row, "score"))
    common = set.intersection(*(set(each) for each in scores.values()))
    systems = list(dict.fromkeys(system for system, _ in scores))
    means = {key: 100 * fmean(fmean(each[one]) for one in common) for key, each in scores.items()}
    lines = [
        [system, *(f"{means[system, str(columns)]:.1f}" for columns in COLUMNS)]
        for system in systems
    ]
    heads = [f"On {len(common)} graphs", *(f"{columns} columns of noise" for columns in COLUMNS)]
    return markdown_table(heads, lines)


def section(found: list[Row]) -> str:
    """Returns the part of gallery.md that shows the rows."""
    return "\n".join(
        [
            "## Columns of noise",
            "",
            "Columns of normal noise stand beside the features, as in a table that nobody has",
            "tidied. Mean scores on development graphs, published or 10 % splits, one seed.",
            "",
            table(found),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "show"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS))
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS))
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.what == "run":
        files = graph_files(Path(os.environ.get("GRAPHCL_DATA", ".")) / "graphs")
        graphs = {
            f"{name}+{columns}": partial(noisy, files[name], columns)
            for name in options.graphs
            for columns in COLUMNS
        }
        device, systems = resolve_device(options.device), read_systems(options.systems)
        compare(graphs, systems, options.out, seeds=[0], device=device, on_progress=show)
    print(table(read(options.out)))


def show(progress: Progress) -> None:
    """Prints one line per training."""
    print(f"{progress.done}/{progress.total}  {progress.label}", flush=True)


if __name__ == "__main__":
    main()
