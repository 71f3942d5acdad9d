"""`graphcl build`: from tables, or any other graph, to a store, whole or in parts."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from graphcl.cli.options import TABLES, JsonOption, print_result
from graphcl.cli.table_options import (
    parse_tables,
    plain_edges,
    print_notes,
    takes_tables,
)
from graphcl.errors import StoreError, require
from graphcl.store.header import ORDERS, is_store, read_store
from graphcl.tabular.options import TableOptions


@takes_tables
def build(
    out: Annotated[Path, typer.Option(help="The store to write, a folder.")],
    tables: TableOptions,
    graph: Annotated[
        str | None,
        typer.Argument(
            metavar="GRAPH",
            help="A list of edges, an .npz, a dataset, or a store to divide into parts; not needed "
            "with --edges.",
        ),
    ] = None,
    edges: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]FILE",
            rich_help_panel=TABLES,
            help="Edges: .csv, .tsv, .parquet (also .gz), a whitespace-separated list, .graphml, "
            ".gml, a SciPy .npz, FILE:TABLE of a DuckDB or SQLite file, or an SQL query. Of a "
            "typed graph, NAME=FILE for each relation; repeatable.",
        ),
    ] = [],  # noqa: B006 (typer copies it)
    overwrite: Annotated[bool, typer.Option(help="Replace an existing store.")] = False,
    parts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Divide the store into this many parts, for processes or machines that hold one "
            "each.",
        ),
    ] = None,
    order: Annotated[
        str,
        typer.Option(
            metavar="|".join(ORDERS),
            help="How nodes are divided: neighbours together, spread by a hash, or in ranges as "
            "they are.",
        ),
    ] = ORDERS[0],
    as_json: JsonOption = False,
) -> None:
    """Turn tables or any graph into a store: a graph on disk that every command takes.

    Ids are integers or text and are kept as they are. Columns of numbers become features. A column
    of text is a category if it has few values. Edges are undirected: repeated rows are merged,
    self-loops are removed, and both are counted. Memory use is bounded; larger tables are processed
    in temporary files.

    A part has a range of the nodes of each type, their features, labels, masks and ids, and the
    edges that they receive. The order neighbours keeps most edges within a part, and parts differ
    in size by a few per cent; hash spreads nodes evenly; as-is keeps the numbers of the nodes.
    Otherwise nodes are numbered anew, and nodes without ids get their old numbers as ids.

    Examples:

        graphcl build --edges edges.csv --nodes nodes.parquet --label topic --out store

        graphcl build --edges "SELECT a, b FROM 'calls.parquet'" --features structural --out store

        graphcl build --edges shop.sqlite:bought --nodes shop.sqlite:people --out store

        graphcl build --edges edges/ --nodes nodes/ --parts 4 --out parts

        graphcl build STORE --parts 16 --order hash --out parts --json

        graphcl build --nodes author=a.csv --nodes paper=p.csv --edges writes=w.csv --out store
    """
    from graphcl.cli.graphs import describe_store, graph_name, load_graph, store_figures
    from graphcl.graphs.graph import Graph
    from graphcl.runs.graph import names_tables
    from graphcl.tabular.build import build_store

    one = plain_edges(edges)
    if edges and one is None:
        tables = replace(tables, edges=parse_tables(edges, "edges"))
    require(not (graph and one), "build", "GRAPH", "left out if --edges gives the edges", graph)
    require(order in ORDERS, "build", "--order", f"one of {', '.join(ORDERS)}", order)
    divided = parts is not None or order == ORDERS[0]
    require(divided, "build", "--order", "given with --parts", order)
    began, said = time.perf_counter(), list[str]()

    def show(step: str) -> None:
        at = f"{time.perf_counter() - began:6.1f} s  "
        if step.startswith("guessed:"):  # it is said before the first step
            at = ""
            said.append(step)
        print(f"{at}{step}", file=sys.stderr, flush=True)

    name, options = one or graph_name(graph, tables, "build"), None
    source: Any = one or graph
    if one or names_tables(name, tables):
        options = tables
    elif is_store(Path(name)) and not tables.given():
        require(parts is not None, "build", "--parts", f"given to divide the store {name}", parts)
    else:
        source = load_graph(name, tables)
        if not isinstance(source, Graph):
            raise StoreError(f"{name}: has several graphs; a store holds one")
    report = build_store(
        source,
        options,
        out=out,
        parts=parts or 1,
        order=order,
        overwrite=overwrite,
        on_step=show,
    )
    print_notes(report, but=said)
    found = {} if options is None else {"found": report.to_json()}
    store = read_store(out)
    about = store_figures(store) | {"seconds": time.perf_counter() - began} | found
    print_result(about, f"{out}: {describe_store(store)}", as_json=as_json)
