"""What the commands that answer share: a run's embeddings and nodes, and tables out.

Nothing here imports torch or a graph until a run needs it: `neighbors` answers in a second.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from graphcl.cli.options import print_result
from graphcl.errors import RunError
from graphcl.files.records import check_records_file, records, write_records
from graphcl.run import Run
from graphcl.runs.files import keep_answer
from graphcl.store.columns import Ids
from graphcl.tabular.options import TableOptions, counted

if TYPE_CHECKING:
    from graphcl.opening import AnyGraph

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
AnswerOption = Annotated[
    Path | None,
    typer.Option("--out", help="A table: .parquet, .csv or .json. (default: it is printed)"),
]
TypeOption = Annotated[
    str | None,
    typer.Option("--type", metavar="TYPE", help="Of a typed graph: the type of the nodes."),
]
EmbeddingsOption = Annotated[
    Path | None,
    typer.Option(
        "--embeddings",
        metavar="SHARDS",
        help="A folder of shards that embed wrote of a store in parts, instead of the run's "
        "embeddings. --graph then names these parts; it gives ids and labels.",
        rich_help_panel="Of a graph in parts",
    ),
]
OverwriteOption = Annotated[bool, typer.Option(help="Replace an existing file.")]


def say(command: str) -> Callable[[str], None]:
    """Returns what prints a note of a command on stderr."""
    return lambda text: print(f"{command}: {text}", file=sys.stderr, flush=True)


def has_node(run: Run) -> Callable[[str], bool]:
    """Returns what says whether a run has a node of some id, whatever its type."""
    types: list[str | None] = [*run.types] or [None]
    return lambda text: any(Ids(run.nodes(one).ids).find([text])[0] >= 0 for one in types)


def check_out(out: Path | None, *, overwrite: bool) -> None:
    """Refuses an output file before any work is done for it."""
    if out is not None:
        check_records_file(out, RunError, overwrite=overwrite)


def open_run(
    path: Path,
    command: tuple[str, ...],
    graph: str | None = None,
    tables: TableOptions | None = None,
    *,
    embeddings: Path | None = None,
    device: str = "auto",
) -> Run:
    """Returns a run whose graph is read as commands read it.

    Args:
        path: the run.
        command: the command under way without the run, to which a refusal adds the run's graph.
        graph: the graph as the command line names it; None means the one that the run names.
        tables: options for reading `graph`.
        embeddings: shards, instead of the embeddings in the run.
        device: where a model computes.
    """

    def read(folder: Path) -> "AnyGraph":
        from graphcl.cli.graphs import load_run_graph

        again = (command[0], str(path), *command[1:])
        return load_run_graph(folder, graph, tables, again=again)

    run = Run(path, graph=graph, embeddings=embeddings, device=device)
    return run.reading(tables or TableOptions(), read)


def give_answer(
    run: Run,
    kind: str,
    summary: Mapping[str, Any],
    columns: Mapping[str, Any],
    *,
    text: str,
    shown: list[str],
    out: Path | None,
    as_json: bool,
    keep: bool = True,
    folder: Path,
) -> None:
    """Writes or prints a table with its summary, and keeps both in the run.

    Args:
        run: the run.
        kind: the command.
        summary: what is kept, and printed with ``--json``.
        columns: the table; written to `out`, or printed under ``rows`` with ``--json``.
        text: what is printed without ``--json``.
        shown: lines printed below it if there is no file.
        out: the file.
        as_json: whether to print JSON.
        keep: whether the run keeps them.
        folder: where in the run they are kept: the folder of the type.
    """
    about, kept = {"run": str(run.folder), **summary}, {"text": text, **summary}
    if out is not None:
        write_records(out, columns)
        about["out"] = str(out)
        text += f"\n{out}: {counted(len(next(iter(columns.values()))), 'row')}"
    else:
        text = "\n".join([text, *shown])
        if as_json:
            about["rows"] = records(columns)
    why = keep_answer(folder, kind, kept, columns) if keep else ""
    if why:
        say(kind)(why)
    print_result(about, text, as_json=as_json)


def first_rows(columns: Mapping[str, Any], names: Iterable[str], most: int) -> list[str]:
    """Returns the first rows of a table as lines, in those columns of `names` that it has."""
    kept = {name: columns[name] for name in names if name in columns}
    rows = [map(_cell, row.values()) for row in records(kept, slice(0, most))]
    more = len(next(iter(columns.values()))) - len(rows)
    lines = ["\t".join(row) for row in (kept, *rows)] if rows else []
    return [*lines, f"… and {more:,} more; --out writes all"] if more > 0 else lines


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def plain(value: Any) -> Any:
    """Returns an id as JSON has it."""
    return value.item() if isinstance(value, np.generic) else value
