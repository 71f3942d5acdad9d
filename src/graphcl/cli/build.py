"""`graphcl build`: from tables to a store."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from graphcl.cli._shared.options import JsonOption, figures, print_result
from graphcl.cli._shared.parts import OrderOption, check_order, print_parts
from graphcl.cli._shared.tables import print_notes, takes_tables
from graphcl.errors import StoreError, require
from graphcl.graphs.graph import Graph
from graphcl.store.parts import ORDERS, read_parts
from graphcl.tabular.build import build_parts, build_store
from graphcl.tabular.options import TableOptions


@takes_tables
def build(
    edges: Annotated[
        str,
        typer.Option(
            help="Edges: .csv, .tsv, .parquet (also .gz), a whitespace-separated list, .graphml, "
            ".gml, a SciPy .npz, FILE:TABLE of a DuckDB or SQLite file, or an SQL query."
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
    """
    if tables.is_typed:
        raise StoreError(
            "build: a store holds a plain graph; train reads the tables of a typed one"
        )
    check_order("build", order)
    given = parts is not None or order == ORDERS[0]
    require(given, "build", "--order", "given with --parts", order)
    began = time.perf_counter()

    def show(step: str) -> None:
        print(f"{time.perf_counter() - began:6.1f} s  {step}", file=sys.stderr, flush=True)

    if parts is not None:
        report = build_parts(
            edges, tables, out=out, parts=parts, order=order, overwrite=overwrite, on_step=show
        )
        print_notes(report)
        found = {"found": report.to_json()}
        print_parts(read_parts(out), time.perf_counter() - began, found, as_json=as_json)
        return
    report = build_store(edges, tables, out=out, overwrite=overwrite, on_step=show)
    print_notes(report)
    graph = Graph.open(out)
    about = {"store": str(out), **figures(graph), "seconds": time.perf_counter() - began}
    print_result(about | {"found": report.to_json()}, f"{out}: {graph!r}", as_json=as_json)
