"""`graphcl datasets`: what is available, as in the paper's Table 1."""

from dataclasses import asdict
from typing import Any

from graphcl.cli._shared.options import JsonOption, figures, print_result
from graphcl.datasets import CATALOGUE, DatasetCard, load_dataset
from graphcl.errors import GraphCLError
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph


def datasets(as_json: JsonOption = False) -> None:
    """List the paper's five datasets, their figures in Table 1, and which are present.

    The figures are the paper's. If a dataset is present and its own figure differs, that figure
    follows in parentheses: the paper counts raw links, and we count each undirected edge once.

    Examples:

        graphcl datasets

        graphcl datasets --json
    """
    rows = [_row(card) for card in CATALOGUE.values()]
    print_result({"datasets": rows}, "" if as_json else _table(rows), as_json=as_json)


def _row(card: DatasetCard) -> dict[str, Any]:
    row: dict[str, Any] = {**asdict(card), "present": card.present, "here": None}
    if card.source == "bundled" or (card.name == "ppi" and card.present):  # quick to read
        try:
            row["here"] = _figures(load_dataset(card.name))
        except GraphCLError as error:
            row["damaged"] = str(error)
    return row


def _figures(graph: Graph | GraphCollection) -> dict[str, Any]:
    split: tuple[int, ...]
    if isinstance(graph, GraphCollection):
        split = graph.split_nodes
    else:
        masks = (graph.train_mask, graph.val_mask, graph.test_mask)
        split = tuple(int(mask.sum()) for mask in masks if mask is not None)
    return {**figures(graph), "split": split}


def _table(rows: list[dict[str, Any]]) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for column in ("Dataset", "Task"):
        table.add_column(column)
    for column in ("Nodes", "Edges", "Features", "Classes", "Train/Val/Test nodes"):
        table.add_column(column, justify="right")
    table.add_column("Present")
    for row in rows:
        counts = [_figure(row, name) for name in ("nodes", "edges", "features", "classes")]
        present = "bundled" if row["source"] == "bundled" else "yes" if row["present"] else "no"
        present = "damaged" if "damaged" in row else present
        table.add_row(row["title"], row["task"], *counts, _split(row), present)
    # A file or a pager has no width to fit, so rows are not wrapped.
    console = Console(width=None if Console().is_terminal else 140)
    with console.capture() as captured:
        console.print(table)
    return captured.get().removesuffix("\n")


def _split(row: dict[str, Any]) -> str:
    ours = row["here"]["split"] if row["here"] else row["split"]
    return "/".join(
        f"{theirs:,}" if theirs == count else f"{theirs:,} ({count:,})"
        for theirs, count in zip(row["split"], ours, strict=True)
    )


def _figure(row: dict[str, Any], name: str) -> str:
    here = row["here"]
    ours = f" ({here[name]:,})" if here and here[name] != row[name] else ""
    return f"{row[name]:,}{ours}"
