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
TODAY = ROOT / "benchmarks/results/time_to_quality_cpu.jsonl"
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


def curves(found: Sequence[Row]) -> dict[tuple[str, str, str], list[tuple[float, float]]]:
    """Returns seconds and score of each length, by device, graph and method, means over seeds.

    Lengths of an earlier `default` count where today's has none.
    """
    each: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in found:
        if "failed" not in row:
            method, system = text(row, "method"), text(row, "system")
            each.setdefault((_kind(row), text(row, "graph"), method, system), []).append(row)
    today = set(lengths("graphcl"))
    measured = {key[:3] for key in each if key[3] in today}
    each = {key: value for key, value in each.items() if key[:3] not in measured or key[3] in today}
    points: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for (kind, graph, method, _), members in each.items():
        seconds = fmean(number(row, "train_seconds") for row in members)
        score = fmean(number(row, "score") for row in members)
        points.setdefault((kind, graph, method), []).append((seconds, score))
    return {key: sorted(value) for key, value in points.items()}


def _kind(row: Row) -> str:
    return "CPU" if row["device"] == "cpu" else text(row, "device")


def _earlier(found: Sequence[Row]) -> list[str]:
    """Says on what today's `default` was not measured, if there is such a thing."""
    ours = [row for row in found if row["method"] == "graphcl"]
    today = {_kind(row) for row in ours if row["system"] in lengths("graphcl")}
    return [
        f"On the {kind}, `default` is an earlier one: learning rate 0.001, temperature 0.5."
        for kind in sorted({_kind(row) for row in ours} - today)
    ]


def _former(found: Sequence[Row]) -> list[str]:
    """Says that `default` is a former one, if no row has what today's has."""
    settings: list[Any] = [row["settings"] for row in found if row["system"] == "graphcl"]
    if any("smoothed_features" in one for one in settings):
        return []
    return ["`default` is the former one: 200 steps, no smoothed features, and its probe."]


def draw(found: Sequence[Row]) -> Any:
    """Draws a panel per device and graph: score by seconds, a line per system."""
    points = curves(found)
    panels = list(dict.fromkeys((kind, graph) for kind, graph, _ in points))
    kinds = list(dict.fromkeys(kind for kind, _ in panels))
    graphs = list(dict.fromkeys(graph for _, graph in panels))
    panels = [(kind, graph) for kind in kinds for graph in graphs]
    wide, high = 3.3 * len(graphs), 0.4 + 3.1 * len(kinds)
    figure, axes = output.new_figure(wide, high, len(panels), len(kinds))
    for axis, (kind, graph) in zip(axes, panels, strict=True):
        for place, method in enumerate(LENGTHS):
            mine = points.get((kind, graph, method))
            if mine:
                x, y = zip(*mine, strict=True)
                style = {"color": output.COLOURS[place], "marker": output.MARKERS[place]}
                shown = [100 * one for one in y]
                axis.plot(x, shown, label=TITLES[method], markersize=4, **style)
        axis.set(xscale="log", xlabel="seconds of training", title=f"{graph}, {kind}")
        axis.xaxis.set_minor_formatter("")  # labels between powers of ten would overlap
        output.finish(axis)
    for axis in axes[:: len(graphs)]:
        axis.set_ylabel("score, %")
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
            "Trainings of several lengths, each from its first step to its last, by",
            "`python -m benchmarks.time_to_quality`. The last point of a line is the system's",
            "default, of DGI and BGRL a small part of it. The table has the best point of each",
            "rival, and when `default` has passed it. *CPU* is two cores of a server's Xeon.",
            *_former(found),
            *_earlier(found),
            "",
            "![Score against seconds of training](images/time_to_quality.png)",
            "",
            table(found),
            "",
            "Today's `default`, measured alone on a CPU beside CCA-SSG: after how many seconds of",
            "training it has which score. After one step, the embedding is mostly what no gradient",
            "has made: own and smoothed features in their principal directions.",
            "",
            today(rows.read(TODAY)),
            "",
        ]
    )


def today(found: Sequence[Row]) -> str:
    """Returns a line per graph and system: its scores and the seconds to them."""
    lines: dict[tuple[str, str], list[str]] = {}
    for row in found:
        method = text(row, "system").partition(":")[0]
        said = f"{100 * number(row, 'score'):.1f} ({number(row, 'train_seconds'):.1f} s)"
        lines.setdefault((text(row, "graph"), TITLES[method]), []).append(said)
    return markdown_table(
        ["graph", "system", "score (after)"],
        [[*key, ", ".join(points)] for key, points in lines.items()],
    )


def table(found: Sequence[Row]) -> str:
    """Returns the best score of each system and the seconds to it, and ours at that time."""
    points = curves(found)
    lines = []
    for (kind, graph, method), mine in points.items():
        ours = points.get((kind, graph, "graphcl"))
        if method == "graphcl" or ours is None:
            continue
        seconds, score = max(mine, key=lambda one: one[1])
        sooner = next((f"{spent:.1f} s" for spent, got in ours if got >= score), "never")
        lines.append(
            [graph, kind, TITLES[method], f"{100 * score:.1f}", f"{seconds:.1f} s", sooner]
        )
    columns = ("graph", "on", "rival", "its best score", "after", "`default` is there after")
    return markdown_table(columns, lines)


if __name__ == "__main__":
    main()
