"""`graphcl datasets`: what is available, as in the paper's Table 1."""

from dataclasses import asdict
from typing import Any

from graphcl.cli.common import JsonOption, print_json
from graphcl.datasets import CATALOGUE, DatasetCard, load_dataset


def datasets(as_json: JsonOption = False) -> None:
    """List the paper's five datasets with the columns of its Table 1, and which are here.

    Figures are the paper's; where a bundled graph differs (the paper counts raw links, we count
    undirected edges once), ours follow in parentheses.
    """
    rows = [_row(card) for card in CATALOGUE.values()]
    if as_json:
        print_json({"datasets": rows})
    else:
        _print_table(rows)


def _row(card: DatasetCard) -> dict[str, Any]:
    row: dict[str, Any] = {**asdict(card), "present": card.present, "here": None}
    if card.source == "bundled":
        graph = load_dataset(card.name)
        row["here"] = {
            "nodes": graph.num_nodes,
            "edges": graph.num_edges,
            "features": graph.num_features,
            "classes": graph.num_classes,
        }
    return row


def _print_table(rows: list[dict[str, Any]]) -> None:
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
        figures = [_figure(row, name) for name in ("nodes", "edges", "features", "classes")]
        split = "/".join(f"{count:,}" for count in row["split"])
        present = "bundled" if row["source"] == "bundled" else "yes" if row["present"] else "no"
        table.add_row(row["title"], row["task"], *figures, split, present)
    # Piped into a file or a pager there is no width to fit: keep rows whole.
    console = Console(width=None if Console().is_terminal else 120)
    with console.capture() as captured:
        console.print(table)
    print(captured.get(), end="")


def _figure(row: dict[str, Any], name: str) -> str:
    here = row["here"]
    ours = f" ({here[name]:,})" if here and here[name] != row[name] else ""
    return f"{row[name]:,}{ours}"
