"""What the commands that answer share: a run's embeddings and nodes, and tables out.

Nothing here imports torch or a graph until a run needs it: `neighbors` answers in a second.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer

from graphcl.cli.options import print_result
from graphcl.errors import RunError, require
from graphcl.files.records import check_records_file, records, write_records
from graphcl.graphs.nodes import Nodes
from graphcl.runs import files as runs
from graphcl.runs.nodes import (
    describe_nodes,
    lacks_embeddings,
    read_nodes,
    run_types,
    type_folder,
)
from graphcl.runs.results import keep_answer
from graphcl.runs.versions import current_run
from graphcl.tabular.options import TableOptions, counted

Array = npt.NDArray[Any]
# Commands work on the current version of the run.
RunArgument = Annotated[Path, typer.Argument(help="A run directory.", callback=current_run)]
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


def check_out(out: Path | None, *, overwrite: bool) -> None:
    """Refuses an output file before any work is done for it."""
    if out is not None:
        check_records_file(out, RunError, overwrite=overwrite)


def nodes_folder(
    run: Path, node_type: str | None, fits: Callable[[Nodes], bool] = lambda _: False
) -> Path:
    """Returns the folder with the embeddings that are asked for: the run, or that of a type.

    Args:
        run: the run.
        node_type: the type, or None. Then it is the only one, or the only one that fits.
        fits: says whether the nodes of a type may be meant.

    Raises:
        RunError: there is no such type, or nothing says which is meant.
    """
    runs.read_config(run, baselines=True)
    if node_type is not None:
        return type_folder(run, node_type)
    names = run_types(run)
    if len(names) < 2:
        return type_folder(run, names[0] if names else None)
    folders = [type_folder(run, name) for name in names]
    read = [(folder, read_nodes(folder)) for folder in folders]
    likely = [folder for folder, nodes in read if nodes is not None and fits(nodes)]
    if len(likely) == 1:
        return likely[0]
    raise RunError(
        f"{run}: its graph has several types ({', '.join(names)}); name one: --type {names[0]}"
    )


def type_of_folder(run: Path, folder: Path | None) -> str | None:
    """Returns the type whose folder in a run this is; None for the run itself."""
    return next((one for one in run_types(run) if type_folder(run, one) == folder), None)


def is_labelled(nodes: Nodes) -> bool:
    """Returns whether nodes have labels."""
    return nodes.y is not None


def run_nodes(
    run: Path,
    graph: str | None,
    tables: TableOptions,
    *,
    again: tuple[str, ...],
    folder: Path | None = None,
    embeddings: Path | None = None,
) -> tuple[Any, Nodes]:
    """Returns the embeddings of a run and what it keeps of its nodes.

    The graph is read only if `graph` names it, or the run has no `nodes.npz`. `folder` is that of a
    type of a typed graph; nothing else is read then. `embeddings` are shards, which stay on disk;
    `graph` is then the store in parts, if any.

    Raises:
        RunError: the run is damaged, has no embeddings, or they do not fit its nodes.
    """
    runs.read_config(run, baselines=True)
    if embeddings is not None:
        from graphcl.answers.inputs import shards_of_run

        require(not tables.given(), again[0], "--graph", "a store in parts, not tables", graph)
        kind = type_of_folder(run, folder)
        return shards_of_run(run, embeddings, graph, again[0], node_type=kind)
    if lacks_embeddings(run):
        from graphcl.cli.graphs import load_run_graph
        from graphcl.training_run import keep_embeddings

        keep_embeddings(run, load_run_graph(run, graph, tables, again=again))
        graph, tables = None, TableOptions()  # what the run keeps is of this graph
    if folder is not None and folder != run:
        given = graph is not None or bool(tables.given())
        require(
            not given, again[0], "--graph", "left out: the run has the nodes of its types", graph
        )
        z, nodes = runs.read_embeddings(folder), read_nodes(folder)
        if nodes is None:
            raise RunError(f"{folder}: has no nodes.npz; train again")
    else:
        z = runs.read_embeddings(run)
        nodes = None if graph is not None else read_nodes(run)
    if nodes is None:
        from graphcl.cli.graphs import load_run_graph

        nodes = describe_nodes(load_run_graph(run, graph, tables, again=again))
    if nodes.num_nodes != len(z):
        raise RunError(f"{run}: {len(z)} embeddings for {nodes.num_nodes} nodes")
    return z, nodes


def give_answer(
    run: Path,
    kind: str,
    summary: Mapping[str, Any],
    columns: Mapping[str, Any],
    *,
    text: str,
    shown: list[str],
    out: Path | None,
    as_json: bool,
    keep: bool = True,
    folder: Path | None = None,
) -> None:
    """Writes or prints a table with its summary, and keeps the summary in the run.

    Args:
        run: the run.
        kind: the command.
        summary: what is kept, and printed with ``--json``.
        columns: the table; written to `out`, or printed under ``rows`` with ``--json``.
        text: what is printed without ``--json``.
        shown: lines printed below it if there is no file.
        out: the file.
        as_json: whether to print JSON.
        keep: whether the run keeps the summary.
        folder: where in the run it is kept; None means the run itself.
    """
    about = {"run": str(run), **summary}
    if out is not None:
        write_records(out, columns)
        about["out"] = str(out)
        text += f"\n{out}: {counted(len(next(iter(columns.values()))), 'row')}"
    else:
        text = "\n".join([text, *shown])
        if as_json:
            about["rows"] = records(columns)
    why = keep_answer(folder or run, kind, summary) if keep else ""
    if why:
        print(f"{kind}: {why}", file=sys.stderr)
    print_result(about, text, as_json=as_json)


def plain(value: Any) -> Any:
    """Returns an id as JSON has it."""
    return value.item() if isinstance(value, np.generic) else value
