"""`graphcl build`: from tables to a store."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from graphcl.cli.options import JsonOption, figures, print_result
from graphcl.cli.parts import OrderOption, check_order, print_parts
from graphcl.cli.table_options import (
    parse_tables,
    plain_edges,
    print_notes,
    takes_tables,
)
from graphcl.errors import require
from graphcl.graphs.graph import Graph
from graphcl.store.parts import ORDERS
from graphcl.tabular.build import build_parts, build_store
from graphcl.tabular.options import TableOptions


@takes_tables
def build(
    edges: Annotated[
        list[str],
        typer.Option(
            metavar="[NAME=]FILE",
            help="Edges: .csv, .tsv, .parquet (also .gz), a whitespace-separated list, .graphml, "
            ".gml, a SciPy .npz, FILE:TABLE of a DuckDB or SQLite file, or an SQL query. Of a "
            "typed graph, NAME=FILE for each relation; repeatable.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The store to write, a folder.")],
    tables: TableOptions,
    overwrite: Annotated[bool, typer.Option(help="Replace an existing store.")] = False,
    parts: Annotated[
        int | None, typer.Option(min=1, help="Write a store in this many parts; see partition.")
    ] = None,
    order: OrderOption = "neighbours",
    as_json: JsonOption = False,
) -> None:
    """Turn tables into a store: a graph on disk that every command takes.

    Ids are integers or text and are kept as they are. Columns of numbers become features. A column
    of text is a category if it has few values. Edges are undirected: repeated rows are merged,
    self-loops are removed, and both are counted. Memory use is bounded; larger tables are processed
    in temporary files.

    Examples:

        graphcl build --edges edges.csv --nodes nodes.parquet --label topic --out store

        graphcl build --edges "SELECT a, b FROM 'calls.parquet'" --features structural --out store

        graphcl build --edges shop.sqlite:bought --nodes shop.sqlite:people --out store

        graphcl build --edges edges/ --nodes nodes/ --parts 4 --out parts

        graphcl build --nodes author=a.csv --nodes paper=p.csv --edges writes=w.csv --out store
    """
    one = plain_edges(edges)
    if one is None:
        tables = replace(tables, edges=parse_tables(edges, "edges"))
    check_order("build", order)
    given = parts is not None or order == ORDERS[0]
    require(given, "build", "--order", "given with --parts", order)
    began, said = time.perf_counter(), list[str]()

    def show(step: str) -> None:
        at = f"{time.perf_counter() - began:6.1f} s  "
        if step.startswith("guessed:"):  # it is said before the first step
            at = ""
            said.append(step)
        print(f"{at}{step}", file=sys.stderr, flush=True)

    if parts is not None:
        report = build_parts(
            one, tables, out=out, parts=parts, order=order, overwrite=overwrite, on_step=show
        )
        print_notes(report, but=said)
        about: dict[str, Any] = {"found": report.to_json()}
        print_parts(out, time.perf_counter() - began, about, as_json=as_json)
        return
    report = build_store(one, tables, out=out, overwrite=overwrite, on_step=show)
    print_notes(report, but=said)
    if tables.is_typed:
        typed = Graph.open(out)
        counts = {"nodes": typed.num_nodes, "edges": typed.num_edges}
        about = {"store": str(out), **counts, "seconds": time.perf_counter() - began}
        print_result(about | {"found": report.to_json()}, f"{out}: {typed!r}", as_json=as_json)
        return
    graph = Graph.open(out)
    about = {"store": str(out), **figures(graph), "seconds": time.perf_counter() - began}
    print_result(about | {"found": report.to_json()}, f"{out}: {graph!r}", as_json=as_json)
