"""`graphcl report`: writes an HTML file about a run."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from graphcl.cli.answers import (
    EmbeddingsOption,
    RunArgument,
    TypeOption,
    is_labelled,
    nodes_folder,
    type_of_folder,
)
from graphcl.cli.options import JsonOption, RunGraphOption, print_result
from graphcl.cli.table_options import takes_tables
from graphcl.errors import GraphCLError, RunError, require
from graphcl.files.atomic import check_new_file, write_whole
from graphcl.runs import files as runs
from graphcl.runs.nodes import lacks_embeddings
from graphcl.tabular.options import TableOptions, counted

if TYPE_CHECKING:
    from graphcl.opening import AnyGraph


@takes_tables
def report(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option(help="The file, .html. (default: report.html in the run)")
    ] = None,
    node_type: TypeOption = None,
    embeddings: EmbeddingsOption = None,
    graph: RunGraphOption = None,
    tables: TableOptions = TableOptions(),  # noqa: B008 (frozen)
    without_graph: Annotated[
        bool, typer.Option("--without-graph", help="Leave out what needs the graph.")
    ] = False,
    layout: Annotated[
        str, typer.Option("--map", help="umap, or pca (fast, needs no extra).")
    ] = "umap",
    seed: Annotated[int, typer.Option(help="Decides the map, clusters and samples.")] = 0,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write one HTML file that shows a run: graph, training, map of embeddings, scores.

    The page needs no network and is smaller than 10 MB. If there are labels, they colour the map,
    and the page shows the probe's confusion matrix; the other measures need no labels. The default
    file, report.html in the run, is replaced without --overwrite.

    Tables that a run names are read only if you trained it yourself; otherwise give --graph, or
    --without-graph. Of a typed graph, the page is about the nodes of --type, or of the only type
    with labels, and lies in the folder of that type.

    Embeddings in shards stay on disk, and so do the parts that --graph names: all nodes are
    clustered, the map and the measures are those of samples. What needs the whole graph in memory
    is left out.

    Examples:

        graphcl report runs/cora

        graphcl report runs/cora --out cora.html --map pca

        graphcl report runs/big --embeddings shards.parquet --graph PARTS
    """
    runs.read_config(run)
    folder = nodes_folder(run, node_type, is_labelled)
    kind = type_of_folder(run, folder)
    target = out if out is not None else folder / "report.html"
    check_new_file(target, (".html", ".htm"), RunError, overwrite=overwrite or out is None)
    from graphcl.cli.graphs import load_run_graph
    from graphcl.reporting.contents import Sharded, gather
    from graphcl.reporting.page import render
    from graphcl.training_run import keep_embeddings

    loaded, why, sharded = None, "it was not asked for", None
    if embeddings is not None:
        require(kind is None, "report", "--embeddings", "left out for a typed graph", "it")
        require(not tables.given(), "report", "--graph", "a store in parts, not tables", graph)
        sharded = Sharded(run, embeddings, graph, seed=seed)
    elif not without_graph and kind is None:
        loaded, why = _graph(run, graph, tables)
        if loaded is not None:
            keep_embeddings(run, loaded)
    elif lacks_embeddings(run):
        keep_embeddings(run, load_run_graph(run, graph, tables, again=("report", str(run))))
    print(f"report: measuring, and drawing the map by {layout}", file=sys.stderr, flush=True)
    about_run: dict[str, Any] = {"why": why, "node_type": kind, "sharded": sharded}
    contents = gather(run, loaded, method=layout, seed=seed, **about_run)
    page = render(contents).encode("utf-8", "replace")
    write_whole(target, page)
    shown = len(contents.points.rows)
    about = {"out": str(target), "bytes": len(page), "nodes_on_map": shown, "map": layout}
    text = f"{target}: {counted(shown, 'node')} on the map, {len(page) / 1e6:.1f} MB"
    print_result(about, text, as_json=as_json)


def _graph(run: Path, given: str | None, tables: TableOptions) -> "tuple[AnyGraph | None, str]":
    """Returns the run's graph, or None and the reason why it cannot be read.

    Raises:
        RunError: the graph is not read on the run's word, or is another one than was asked for.
    """
    from graphcl.cli.graphs import load_run_graph
    from graphcl.runs.graph import UntrustedRunError

    try:
        return load_run_graph(run, given, tables, again=("report", str(run))), ""
    except UntrustedRunError as error:
        raise RunError(f"{error}, or do without: --without-graph") from None
    except GraphCLError as error:
        if given is not None:
            raise
        print(f"report: {error}; continuing without the graph", file=sys.stderr)
        return None, str(error)
