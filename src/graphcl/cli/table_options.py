"""Options for reading tables, shared by every command that reads some."""

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from graphcl.cli.options import TABLES, is_verbose
from graphcl.errors import GraphError
from graphcl.files.remote import named
from graphcl.settings import LABEL_KINDS
from graphcl.tabular.options import (
    DUPLICATES,
    FEATURES,
    MISSING,
    ONE_EACH,
    UNKNOWN_EDGES,
    TableOptions,
)
from graphcl.tabular.report import ColumnOutcome, TableReport, Usual

_FILES, _LABELS, _TIMES, _COLUMNS_PANEL = (
    f"{TABLES}: files and features",
    f"{TABLES}: ids, labels and weights",
    f"{TABLES}: as of a day",
    f"{TABLES}: columns of the nodes",
)
_MANY_COLUMNS, _MOST_LINES, _MOST_ALIKE = 20, 40, 3
_TABLES = {"nodes", "edges"}  # options that take one table, or several with names
_NAMES = re.compile(r"^\w+ \S+:|'[^']*'|[\d,]+")  # that tell alike lines apart
_NAMED = re.compile(r"([^\s=/'\"()]+)=(.+)", re.DOTALL)


def _option(
    kind: Any, text: str, *names: str, metavar: str | None = None, panel: str = _COLUMNS_PANEL
) -> Any:
    return Annotated[kind, typer.Option(*names, help=text, metavar=metavar, rich_help_panel=panel)]


_COLUMN, _COLUMNS = str | None, list[str]
# Options of one value, which a typed graph has for each type or relation: TYPE=VALUE, repeatable.
_OF_EACH = (*ONE_EACH, "tags", "vectors", "vector_ids")
_OPTIONS: dict[str, Any] = {
    "nodes": _option(
        list[str],
        "Nodes: .csv, .tsv, .parquet, .npy, .npz, FILE:TABLE or an SQL query. Of a typed graph, "
        "TYPE=FILE; repeatable.",
        metavar="[TYPE=]FILE",
        panel=TABLES,
    ),
    "edges": _option(
        list[str],
        "Of a typed graph: the edges of a relation, NAME=FILE, or SOURCE:NAME:TARGET=FILE with the "
        "types of its ends; repeatable.",
        metavar="NAME=FILE",
        panel=TABLES,
    ),
    "relation": _option(
        _COLUMN, "Column of the edges that names the relation of each.", panel=_LABELS
    ),
    "directed": _option(
        bool, "An edge and its reverse differ: followed, following.", "--directed", panel=_LABELS
    ),
    "tags": _option(
        _COLUMNS,
        "A long table, with rows of id, name[, value]: each name is a feature.",
        panel=_FILES,
    ),
    "tag_columns": _option(
        _COLUMNS,
        "The columns of --tags: ID,NAME[,VALUE]. (default: guessed)",
        metavar="COLUMNS",
        panel=_FILES,
    ),
    "vectors": _option(
        _COLUMNS,
        "An .npy with a vector for each row of --nodes, as of a language model.",
        panel=_FILES,
    ),
    "vector_ids": _option(
        _COLUMNS,
        "Ids of the vectors, if they are in another order: an .npy or a table.",
        panel=_FILES,
    ),
    "source_column": _option(
        _COLUMNS, "Column of the edges' source nodes. (default: guessed)", panel=_LABELS
    ),
    "target_column": _option(
        _COLUMNS, "Column of the edges' target nodes. (default: guessed)", panel=_LABELS
    ),
    "weight": _option(
        _COLUMNS, "Column of positive edge weights. (default: unweighted)", panel=TABLES
    ),
    "id_column": _option(
        _COLUMNS,
        "Column of the nodes' ids. (default: guessed) Of a typed graph, TYPE=COLUMN; repeatable, "
        "as are all options of a type or a relation.",
        metavar="[TYPE=]COLUMN",
        panel=TABLES,
    ),
    "label": _option(
        _COLUMNS,
        "Column of the nodes' classes, or of a number to predict; only the probe and predict use "
        "it. Repeatable, for several labels.",
        metavar="COLUMN",
        panel=TABLES,
    ),
    "label_separator": _option(
        str | None,
        "What stands between the labels in a cell, such as '|'.",
        metavar="TEXT",
        panel=_LABELS,
    ),
    "label_kind": _option(
        str,
        "The labels are classes, or a number to predict. (default: by their values)",
        metavar="|".join(LABEL_KINDS),
        panel=_LABELS,
    ),
    "split": _option(_COLUMNS, "Column that says train, val or test.", panel=_LABELS),
    "one_hot": _option(_COLUMNS, "A column of categories; repeatable.", metavar="COLUMN"),
    "text": _option(_COLUMNS, "A column of texts to read; repeatable.", metavar="COLUMN"),
    "date": _option(_COLUMNS, "A column of dates; repeatable.", metavar="COLUMN"),
    "decimal": _option(
        str | None, "The decimal mark of numbers: . or , (default: guessed)", metavar="MARK"
    ),
    "date_format": _option(
        str | None,
        "How dates are written, such as %d/%m/%Y. (default: guessed)",
        metavar="FORMAT",
    ),
    "ignore": _option(_COLUMNS, "Leave a column out; repeatable.", metavar="COLUMN"),
    "time": _option(
        _COLUMNS,
        "Column that says when a row came, of nodes or edges; repeatable.",
        metavar="[NAME=]COLUMN",
        panel=_TIMES,
    ),
    "label_time": _option(
        _COLUMNS,
        "Column of the nodes that says when their labels came. (default: with their nodes)",
        metavar="[TYPE=]COLUMN",
        panel=_TIMES,
    ),
    "until": _option(
        str | None,
        "Leave out what came later: a date, a time or a number. (default: the latest row)",
        metavar="DATE",
        panel=_TIMES,
    ),
    "age": _option(bool, "The time since an edge came is a feature of it.", panel=_TIMES),
    "missing": _option(
        str,
        f"Missing values: {MISSING[1]} them, or fill in {' or '.join(MISSING[2:])}; auto: the mean "
        "where few are missing.",
    ),
    "strict": _option(
        bool, "Guess nothing: refuse what is not said by an option.", "--strict", panel=TABLES
    ),
    "duplicates": _option(
        str,
        f"Rows of nodes with the same id: keep the {' or the '.join(DUPLICATES[:2])}, or refuse.",
        metavar="WHICH",
        panel=_LABELS,
    ),
    "unknown_edges": _option(
        str,
        "Edges that name nodes without a row: add these nodes, with zero features; drop the "
        "edges; or refuse.",
        metavar="|".join(UNKNOWN_EDGES),
        panel=_LABELS,
    ),
    "features": _option(
        str,
        f"Features: {', '.join(FEATURES)}; structural ones are computed from the edges.",
        panel=TABLES,
    ),
    "header": _option(
        bool | None, "Whether the first line holds column names. (default: guessed)", panel=_FILES
    ),
}


def takes_tables(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of `TableOptions` to a command, which receives them as `tables`.

    typer builds a command line from a signature, so the wrapper's signature contains both.
    """
    own = inspect.signature(command)
    mine = [parameter for name, parameter in own.parameters.items() if name != "tables"]
    added = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=[] if one.name in (*_TABLES, *_OF_EACH) else _plain(one.default),
            annotation=_OPTIONS[one.name],
        )
        for one in fields(TableOptions)
        if one.name in _OPTIONS and one.name not in own.parameters
    ]

    @wraps(command)
    def with_tables(**given: Any) -> None:
        chosen = {parameter.name: given.pop(parameter.name) for parameter in added}
        for name in _TABLES & chosen.keys():
            chosen[name] = parse_tables(chosen[name], name)
        for name in _OF_EACH:
            given_here = chosen[name]
            chosen[name] = (
                tuple(given_here) if len(given_here) > 1 else next(iter(given_here), None)
            )
        command(**given, tables=TableOptions(**chosen))

    with_tables.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*mine, *added)
        ]
    )
    hints = {parameter.name: parameter.annotation for parameter in (*mine, *added)}
    with_tables.__annotations__ = hints | {"return": None}
    return with_tables


def _plain(default: Any) -> Any:
    return list(default) if isinstance(default, tuple) else default


def plain_edges(given: list[str]) -> str | None:
    """Returns the list of edges that ``--edges`` gives without a name; None if it gives names."""
    named = [not Path(text).exists() and bool(_NAMED.match(text)) for text in given]
    return given[0] if named == [False] else None


def parse_tables(given: list[str], role: str) -> Any:
    """Returns one table, or tables by the names of types or relations: ``author=authors.csv``.

    Raises:
        GraphError: some have names and some have not, or two have the same.
    """
    if not given:
        return None
    option, what = f"--{role}", "TYPE" if role == "nodes" else "NAME"
    matches = [None if Path(text).exists() else _NAMED.match(text) for text in given]
    if role == "nodes" and matches == [None]:
        return given[0]
    named: dict[str, str] = {}
    for text, match in zip(given, matches, strict=True):
        if match is None:
            raise GraphError(f"{option} {text}: give a name with it: {option} {what}={text}")
        name, table = match.groups()
        if name in named:
            raise GraphError(f"{option}: {name!r} is given twice")
        named[name] = table
    return named


def as_arguments(tables: TableOptions) -> list[str]:
    """Returns the command-line arguments that give these options."""
    words = []
    for name, value in tables.given().items():
        option = "--" + name.replace("_", "-")
        if name not in _OPTIONS:  # what the command line does not take, the run says
            continue
        if isinstance(value, Mapping):
            words += [word for one in value.items() for word in (option, "=".join(one))]
        elif isinstance(value, bool):
            words.append(option if value else f"--no-{option[2:]}")
        else:
            each = value if isinstance(value, tuple) else (value,)
            words += [word for one in each for word in (option, str(one))]
    return words


def print_notes(
    report: TableReport, *, whole: bool = False, again: bool = False, but: Sequence[str] = ()
) -> None:
    """Prints on stderr what is unusual about tables; with ``--verbose`` all that was found.

    What was guessed of ids and ends comes first: it decides what the graph is.

    Args:
        report: of a plain graph, or of a typed one: type by type, then relation by relation.
        whole: say all without ``--verbose`` too, also what became of each column.
        again: say nothing, as a training has said it; with ``--verbose`` all.
        but: lines that have been printed before.
    """
    said = [line for line in report.first if line not in but and not (again and not is_verbose())]
    if whole or is_verbose():
        said += report.lines
        said += [] if report.types else column_lines(report.fates)
        for name, one in report.types.items():
            said += column_lines(one.fates, f"table of {name}")
        for name, fates in report.relations.items():
            said += column_lines(fates, f"list of {name.split(':')[1]}")
    elif not again:
        said += unusual(report.lines)
    for line in said:
        print(named(line), file=sys.stderr)


def unusual(lines: Sequence[str]) -> list[str]:
    """Returns the lines that are not `Usual`, but few that differ in names and numbers alone."""
    kinds: dict[str, list[str]] = {}
    for line in lines:
        if not isinstance(line, Usual):
            kinds.setdefault(_NAMES.sub("", line), []).append(line)
    said = []
    for alike in kinds.values():
        left = len(alike) - _MOST_ALIKE
        said += alike if left < 2 else alike[:_MOST_ALIKE]
        said += [f"  … and {left:,} more; -v says all"] if left > 1 else []
    return said


def column_lines(fates: Sequence[ColumnOutcome], table: str = "node table") -> list[str]:
    """Returns a line per column, or per run of columns with the same fate if there are many."""
    rows = [(fate.column, fate) for fate in fates]
    if len(rows) > _MANY_COLUMNS:
        rows = []
        for _, group in groupby(fates, key=lambda fate: (fate.became, fate.missing > 0)):
            same = list(group)
            if len(same) < 3:
                rows += [(fate.column, fate) for fate in same]
            else:
                name = f"{same[0].column} … {same[-1].column} ({len(same):,} columns)"
                rows.append((name, same[0]._replace(missing=sum(one.missing for one in same))))
    left = len(rows) - _MOST_LINES
    width = max((len(name) for name, _ in rows[:_MOST_LINES]), default=0)
    lines = [
        f"  {name:{min(width, 40)}}  {fate.became}"
        + (f"; {fate.missing:,} missing" if fate.missing else "")
        for name, fate in rows[:_MOST_LINES]
    ]
    of_nodes = any(not fate.column.startswith("--") for fate in fates)
    heading = [f"columns of the {table}:" if of_nodes else "beside the edges:"] if lines else []
    return heading + lines + ([f"  … and {left:,} more; the run lists all"] if left > 0 else [])
