"""`graphcl report`: writes an HTML file about a run."""

from pathlib import Path
from typing import Annotated

import typer

from graphcl.cli.answers import EmbeddingsOption, RunArgument, TypeOption, open_run, say
from graphcl.cli.options import JsonOption, RunGraphOption, print_result
from graphcl.cli.table_options import takes_tables
from graphcl.tabular.options import TableOptions, counted


@takes_tables
def report(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option(help="The file, .html. (default: report.html in the run)")
    ] = None,
    title: Annotated[str, typer.Option(help="Of the page. (default: the graph's name)")] = "",
    note: Annotated[
        str, typer.Option(help="What you want to say to the reader; each line is a paragraph.")
    ] = "",
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
    seed: Annotated[int, typer.Option(help="Decides the map, groups and samples.")] = 0,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write one HTML file to send: a list to act on, groups, a map, and how they were made.

    First come the --title and --note, the answer in a sentence, and the nodes that predict ranked,
    with its reasons; then the groups of cluster with what sets them apart, and a map that labels,
    predictions, groups or any column colour. The list can be searched and sorted; an id shows the
    node's columns, prediction and neighbours. Scores and the training are at the end.

    Predictions are those that predict was last asked for; groups are those of cluster, or are found
    now. The page needs no network and is smaller than 10 MB. The default file, report.html in the
    run, is replaced without --overwrite.

    Tables that a run names are read only if you trained it yourself; otherwise give --graph, or
    --without-graph. Of a typed graph, the page is about the nodes of --type, or of the only type
    with labels, and lies in the folder of that type.

    Embeddings in shards stay on disk, and so do the parts that --graph names: all nodes are
    clustered, the map and the measures are those of samples. What needs the whole graph in memory
    is left out.

    Examples:

        graphcl report runs/cora

        graphcl report runs/cora --out cora.html --map pca

        graphcl report runs/mine --title "Whom to call" --note "Of March. Ask Ada." --out list.html

        graphcl report runs/big --embeddings shards.parquet --graph PARTS
    """
    asked = open_run(run, ("report",), graph, tables, embeddings=embeddings)
    say("report")(f"measuring, and drawing the map by {layout}")
    page = asked.report(
        out,
        title=title,
        note=note,
        node_type=node_type,
        layout=layout,
        without_graph=without_graph,
        seed=seed,
        overwrite=overwrite,
        on_note=say("report"),
    )
    about = {"out": str(page.path), "bytes": page.bytes, "nodes_on_map": page.nodes, "map": layout}
    text = f"{page.path}: {counted(page.nodes, 'node')} on the map, {page.bytes / 1e6:.1f} MB"
    print_result(about, text, as_json=as_json)
