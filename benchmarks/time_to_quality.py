"""Score against seconds of training: `default` and its rivals, each trained for several lengths.

usage: python -m benchmarks.time_to_quality --out ROWS.jsonl [--graphs amazon_photo ...]
           [--systems graphcl cca-ssg ...] [--runs 1] [--device cpu] [--budget SECONDS]

Each point is a training of its own, from the first step to its last, so that a schedule over the
steps is that of its length. The last length of a system is its default. Nothing else should run on
the machine. Before the first row of a system on a graph, one step is trained and thrown away: what
is compiled once is not counted. The protocol and the rows are those of `benchmarks.gallery`; rows
that are there are not computed again. `python -m benchmarks.gallery --page` shows what is committed
in docs/research/gallery.md.
"""

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from graphcl.datasets import graph_files, read_gallery_graph
from graphcl.devices import resolve_device
from graphcl.graphs.graph import Graph
from graphcl.research import output, rows
from graphcl.research.comparison import compare, read_systems
from graphcl.research.output import markdown_table
from graphcl.research.rows import Row, number, text
from graphcl.research.trials import train_method

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/time_to_quality.jsonl"
GRAPHS = ("amazon_photo", "blogcatalog_attr", "cora_ml", "tolokers")
LENGTHS: dict[str, tuple[str, tuple[int, ...]]] = {
    "graphcl": ("steps", (1, 5, 10, 25, 50, 100)),
    "dgi": ("epochs", (10, 30, 100)),
    "grace": ("epochs", (5, 20, 60)),
    "bgrl": ("epochs", (30, 100, 300)),
    "cca-ssg": ("epochs", (5, 15, 40)),
}
OWN_LENGTH = ("graphcl", "grace", "cca-ssg")  # whose default is one more point
TITLES = {
    "graphcl": "GraphCL, default",
    "dgi": "DGI",
    "grace": "GRACE",
    "bgrl": "BGRL",
    "cca-ssg": "CCA-SSG",
}


def lengths(method: str) -> list[str]:
    """Returns a system for each length, the shortest first."""
    key, values = LENGTHS[method]
    default = [method] if method in OWN_LENGTH else []
    return [f"{method}:{key}={value}" for value in values] + default


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS))
    parser.add_argument("--systems", nargs="+", default=list(LENGTHS), choices=list(LENGTHS))
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--budget", type=float, default=float("inf"))
    options = parser.parse_args()
    files = graph_files(Path(os.environ.get("GRAPHCL_DATA", ".")) / "graphs")
    device, began = resolve_device(options.device), time.perf_counter()
    for name in options.graphs:
        graph = read_gallery_graph(files[name])
        for method in options.systems:
            left = options.budget - (time.perf_counter() - began)
            if left <= 0:
                return
            _measure(name, graph, method, options, device, left)


def _measure(
    name: str, graph: Graph, method: str, options: argparse.Namespace, device: Any, left: float
) -> None:
    systems = read_systems(lengths(method))
    there = {(row["graph"], row["system"], row["seed"]) for row in rows.read(options.out)}
    wanted = {(name, one.label, seed) for one in systems for seed in range(options.runs)}
    if wanted <= there:
        return
    train_method(method, graph, seed=0, device=device, settings={LENGTHS[method][0]: 1})
    compare(
        {name: lambda: graph},
        systems,
        options.out,
        seeds=range(options.runs),
        device=device,
        budget=left,
        on_progress=lambda now: print(f"{now.label}  {now.elapsed:.0f} s", flush=True),
    )


def curves(found: Sequence[Row]) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """Returns seconds and score of each length, by graph and method, means over seeds."""
    each: dict[tuple[str, str, str], list[Row]] = {}
    for row in found:
        if "failed" not in row:
            key = (text(row, "graph"), text(row, "method"), text(row, "system"))
            each.setdefault(key, []).append(row)
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for (graph, method, _), members in each.items():
        seconds = fmean(number(row, "train_seconds") for row in members)
        score = fmean(number(row, "score") for row in members)
        points.setdefault((graph, method), []).append((seconds, score))
    return {key: sorted(value) for key, value in points.items()}


def draw(found: Sequence[Row]) -> Any:
    """Draws a panel per graph: score by seconds, a line per system."""
    points = curves(found)
    graphs = list(dict.fromkeys(graph for graph, _ in points))
    figure, axes = output.new_figure(3.3 * len(graphs), 3.5, len(graphs))
    for axis, graph in zip(axes, graphs, strict=True):
        for place, method in enumerate(LENGTHS):
            mine = points.get((graph, method))
            if mine:
                x, y = zip(*mine, strict=True)
                style = {"color": output.COLOURS[place], "marker": output.MARKERS[place]}
                shown = [100 * one for one in y]
                axis.plot(x, shown, label=TITLES[method], markersize=4, **style)
        axis.set(xscale="log", xlabel="seconds of training", title=graph)
        axis.xaxis.set_minor_formatter("")  # labels between powers of ten would overlap
        output.finish(axis)
    axes[0].set_ylabel("score, %")
    pairs = [pair for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
    shown = {label: handle for handle, label in pairs}  # a panel may lack a system
    figure.legend(
        shown.values(), shown.keys(), loc="outside lower center", ncols=5, frameon=False, fontsize=8
    )
    return figure


def section(found: Sequence[Row]) -> str:
    """Returns the part of the page that shows the rows."""
    return "\n".join(
        [
            "## Score against seconds",
            "",
            "Trainings of several lengths on two cores of a CPU, each from its first step to its",
            "last, by `python -m benchmarks.time_to_quality`, one seed: which score after how many",
            "seconds. The last point of a line is the system's default, of DGI a part of it.",
            "After one step, ours is mostly what no gradient has made: own and smoothed features",
            "in their principal directions.",
            "",
            "![Score against seconds of training](images/time_to_quality.png)",
            "",
            table(found),
            "",
            behind(found),
            "",
        ]
    )


def table(found: Sequence[Row]) -> str:
    """Returns a line per graph and system: its scores and the seconds to them."""
    lines = [
        [
            graph,
            TITLES[method],
            ", ".join(f"{100 * score:.1f} ({seconds:.1f} s)" for seconds, score in points),
        ]
        for (graph, method), points in curves(found).items()
    ]
    return markdown_table(["graph", "system", "score (after)"], lines)


def behind(found: Sequence[Row]) -> str:
    """Says where, with the seconds of a rival's point, ours has a lower score than it."""
    points, said = curves(found), []
    for (graph, method), theirs in points.items():
        for seconds, score in theirs if method != "graphcl" else ():
            ours = [got for spent, got in points[graph, "graphcl"] if spent <= seconds]
            gap = 100 * (score - max(ours, default=0.0))
            if gap > 0:
                said.append(f"{graph}, {TITLES[method]} after {seconds:.1f} s: {gap:.1f} points")
    return f"Where a rival is ahead of ours with as many seconds: {'; '.join(said) or 'nowhere'}."


if __name__ == "__main__":
    main()
