"""Options that say what tables mean, shared by every command that reads some."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Annotated, Any

import typer

from graphcl.tabular.options import FEATURES, MISSING, TableOptions, TableReport

_PANEL = "Tables"


def _option(kind: Any, text: str, *names: str, metavar: str | None = None) -> Any:
    return Annotated[kind, typer.Option(*names, help=text, metavar=metavar, rich_help_panel=_PANEL)]


_COLUMN, _COLUMNS = str | None, list[str]
_KINDS: dict[str, Any] = {
    "nodes": _option(
        str | None, "Nodes: .csv, .tsv, .parquet, .npy, .npz, FILE:TABLE or an SQL query."
    ),
    "source_column": _option(_COLUMN, "Column of the edges' first ends. (default: guessed)"),
    "target_column": _option(_COLUMN, "Column of their second ends. (default: guessed)"),
    "weight": _option(_COLUMN, "Column of edge weights, positive. (default: unweighted)"),
    "id_column": _option(_COLUMN, "Column of the nodes' ids. (default: guessed)"),
    "label": _option(_COLUMN, "Column of the nodes' classes; for the probe alone."),
    "split": _option(_COLUMN, "Column of train, val or test."),
    "one_hot": _option(_COLUMNS, "Encode a text column; repeatable.", metavar="COLUMN"),
    "ignore": _option(_COLUMNS, "Leave a column out; repeatable.", metavar="COLUMN"),
    "missing": _option(str, f"Missing values: {', '.join(MISSING)} (fill in)."),
    "add_missing_nodes": _option(
        bool, "Nodes that only edges name get features of zero.", "--add-missing-nodes"
    ),
    "features": _option(str, f"{', '.join(FEATURES)}; structural ones come from the edges alone."),
    "header": _option(bool | None, "Whether the first line names the columns. (default: guessed)"),
}


def takes_tables(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of `TableOptions`; it receives them as its argument `tables`.

    typer builds a command line from a signature, so the wrapper has the signature of both.
    """
    own = inspect.signature(command)
    mine = [parameter for name, parameter in own.parameters.items() if name != "tables"]
    added = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=list(one.default) if isinstance(one.default, tuple) else one.default,
            annotation=_KINDS[one.name],
        )
        for one in fields(TableOptions)
        if one.name in _KINDS
    ]

    @wraps(command)
    def with_tables(**given: Any) -> None:
        chosen = {parameter.name: given.pop(parameter.name) for parameter in added}
        for name in ("one_hot", "ignore"):
            chosen[name] = tuple(chosen[name])
        command(**given, tables=TableOptions(**chosen))

    with_tables.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*mine, *added)
        ]
    )
    hints = {parameter.name: parameter.annotation for parameter in (*mine, *added)}
    with_tables.__annotations__ = hints | {"return": None}
    return with_tables


def print_notes(report: TableReport) -> None:
    """Says on stderr what was guessed, merged, left out and filled in."""
    for line in report.notes:
        print(line, file=sys.stderr)
