"""`graphcl compare`: systems side by side on many graphs, or finished runs side by side."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from graphcl.cli.graphs import FLATTENED, load_any
from graphcl.cli.options import DeviceOption, JsonOption, print_result
from graphcl.cli.processes import continues
from graphcl.cli.progress import run_progress
from graphcl.datasets.gallery import graph_files, read_gallery_graph
from graphcl.devices import resolve_device
from graphcl.errors import DatasetError, require
from graphcl.graphs.graph import Graph
from graphcl.research import comparison
from graphcl.research.output import Artefacts, csv_text
from graphcl.runs.comparison import compare_runs, is_run
from graphcl.store.reader import is_store

METHODS = "graphcl,raw,propagation,dgi,grace,cca-ssg"


def compare(
    graphs: Annotated[
        list[str],
        typer.Argument(help="Folders of .npz graphs, datasets, stores, graph files; or runs."),
    ],
    methods: Annotated[
        list[str],
        typer.Option(help="Systems, comma-separated: NAME, or NAME:key=value,key=value."),
    ] = [METHODS],  # noqa: B006 (typer copies it)
    repeats: Annotated[int, typer.Option("--runs", min=1, help="Number of seeds.")] = 3,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    device: DeviceOption = "auto",
    out: Annotated[Path, typer.Option(help="The folder for results.")] = Path("comparison"),
    as_json: JsonOption = False,
) -> None:
    """Train systems on many graphs and score all alike: rows, a table and a picture.

    Every system runs with its defaults, or with the settings given after its name. Embeddings are
    scored by logistic regression over all splits of a graph, or three random ones if it has none:
    accuracy, ROC-AUC for two classes, mean AUC of the labels if a node has several.

    Given runs instead of graphs, it trains nothing: it lists in which settings they differ, and
    their scores, as each run has them.

    Rows are appended to OUT/compare.jsonl as trainings finish; the table is written to the same
    folder as Markdown, CSV, LaTeX and a PNG. The same command continues where an earlier one
    stopped. A failure is kept as a row and named below the table; the same command tries it again.

    Examples:

        graphcl compare my-graphs --methods graphcl,grace,cca-ssg --runs 3

        graphcl compare cora citeseer --methods raw,graphcl:encoder=residual --device cuda

        graphcl compare runs/first runs/second --json
    """
    runs = [is_run(Path(name)) for name in graphs]
    if any(runs):
        require(all(runs), "compare", "arguments", "all runs, or all graphs", graphs)
        found = compare_runs([Path(name) for name in graphs])
        print_result(found.to_json(), found.table(), as_json=as_json)
        return
    systems = comparison.read_systems(methods)
    require(len(systems) >= 1, "compare", "--methods", "one system or more", methods)
    chosen = find_graphs(graphs)
    where, artefacts = resolve_device(device), Artefacts(out, "compare")
    with continues("compare", "rows", artefacts.rows), run_progress("compare") as show:
        rows = comparison.compare(
            chosen,
            systems,
            artefacts.rows,
            seeds=range(seed, seed + repeats),
            device=where,
            on_progress=show,
        )
    summary = comparison.summarise_rows(rows, [system.name for system in systems])
    scored = any(cell.mean is not None for cell in summary.cells)
    cells = [asdict(cell) for cell in summary.cells]
    files = artefacts.write(
        markdown=comparison.markdown(summary, picture=f"{artefacts.name}.png" if scored else ""),
        csv=csv_text(cells),
        latex=comparison.latex(summary),
        draw=(lambda: comparison.draw(summary)) if scored else None,
    )
    report = {
        "cells": cells,
        "overall": [asdict(one) for one in summary.overall],
        "common": list(summary.common),
        "files": files,
    }
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    listed = "\n".join(f"{kind}: {path}" for kind, path in files.items())
    text = f"{comparison.terminal(summary, width=width)}\n{listed}"
    print_result(report, text, as_json=as_json)


def find_graphs(names: list[str]) -> dict[str, Callable[[], Graph]]:
    """Returns a function that loads each graph, by name.

    Raises:
        DatasetError: two graphs have one name.
    """
    found: dict[str, Callable[[], Graph]] = {}
    for name in names:
        path = Path(name)
        new: dict[str, Callable[[], Graph]]
        if path.is_dir() and not is_store(path):
            files = graph_files(path)
            new = {stem: partial(read_gallery_graph, file) for stem, file in files.items()}
        else:
            graph = _one_graph(name)  # now: a wrong name is said before any training
            new = {graph.name: partial(_the_graph, graph)}
        for one, load in new.items():
            if one in found:
                raise DatasetError(f"compare: two graphs are named {one!r}")
            found[one] = load
    return found


def _the_graph(graph: Graph) -> Graph:
    return graph


def _one_graph(name: str) -> Graph:
    graph = load_any(name)
    if not isinstance(graph, Graph):
        raise DatasetError(f"compare: takes single graphs; {name} has {len(graph.graphs)}")
    if not graph.is_plain:
        print(f"{name}: every system but graphcl {FLATTENED}", file=sys.stderr)
    return graph
