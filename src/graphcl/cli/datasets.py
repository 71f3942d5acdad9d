"""`graphcl datasets`: what is available, as in the paper's Table 1, and the gallery."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from graphcl.cli.options import JsonOption, print_result
from graphcl.errors import GraphCLError
from graphcl.files.records import aligned


def datasets(as_json: JsonOption = False) -> None:
    """List the paper's five datasets, which are present, and the gallery's graphs.

    The figures are those of Table 1. If a dataset is present and its own figure differs, it follows
    in parentheses: the paper counts raw links, and we count each undirected edge once.

    The gallery is the folder graphs/ in the folder that GRAPHCL_DATA names: an .npz file per graph.

    Examples:

        graphcl datasets

        graphcl datasets --json
    """
    from graphcl.datasets import CATALOGUE, data_folders, gallery_files

    rows = [_row(card) for card in CATALOGUE.values()]
    gallery = [_gallery_row(name, path) for name, path in gallery_files(data_folders()).items()]
    report: dict[str, Any] = {"datasets": rows}
    if gallery:
        report["gallery"] = gallery
    text = "" if as_json else _table(rows) + _gallery_table(gallery)
    print_result(report, text, as_json=as_json)


def _row(card: Any) -> dict[str, Any]:
    from graphcl.datasets import figures, load_dataset

    row: dict[str, Any] = {**asdict(card), "present": card.present, "here": None}
    if card.source == "bundled" or (card.name == "ppi" and card.present):  # quick to read
        try:
            row["here"] = figures(load_dataset(card.name))
        except GraphCLError as error:
            row["damaged"] = str(error)
    return row


def _gallery_row(name: str, path: Path) -> dict[str, Any]:
    import numpy as np

    from graphcl.datasets import figures, read_gallery_graph

    try:
        graph = read_gallery_graph(path)
    except GraphCLError as error:
        return {"name": name, "file": str(path), "damaged": str(error)}
    several = graph.y is not None and graph.y.ndim == 2
    found = {key: value for key, value in figures(graph).items() if key != "split"}
    if graph.only_type.classes is not None:  # numbers may be left out: some count from 1
        classes = graph.only_type.classes
        found["classes"] = len(np.unique(classes[classes >= 0]))
    return {
        "name": name,
        "file": str(path),
        **found,
        "several_labels": several,
        "splits": graph.num_splits,
    }


def _gallery_table(rows: list[dict[str, Any]]) -> str:
    columns = ("nodes", "edges", "features", "classes", "splits")
    lines = [["Graph", *map(str.capitalize, columns), ""]]
    for row in rows:
        note = "several labels" if row.get("several_labels") else ""
        counts = [f"{row[name]:,}" if name in row else "–" for name in columns]
        lines.append([row["name"], *counts, "damaged" if "damaged" in row else note])
    return "\n".join(["", "", "Gallery", *aligned(lines)]) if rows else ""


def _table(rows: list[dict[str, Any]]) -> str:
    columns = ("nodes", "edges", "features", "classes")
    named = ("Dataset", "Task", *map(str.capitalize, columns), "Train/Val/Test nodes", "Present")
    lines = [[*named]]
    for row in rows:
        present = "bundled" if row["source"] == "bundled" else "yes" if row["present"] else "no"
        present = "damaged" if "damaged" in row else present
        here = row["here"] or row
        counts = [_figure(row[name], here[name]) for name in columns]
        split = "/".join(map(_figure, row["split"], here["split"]))
        lines.append([row["title"], row["task"], *counts, split, present])
    return "\n".join(aligned(lines))


def _figure(theirs: int, ours: int) -> str:
    return f"{theirs:,}" if theirs == ours else f"{theirs:,} ({ours:,})"
