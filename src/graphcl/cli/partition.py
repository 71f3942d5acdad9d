"""`graphcl partition`: divides a store into parts."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from graphcl.cli.options import JsonOption
from graphcl.cli.parts import OrderOption, check_order, print_parts
from graphcl.tabular.build import partition_store


def partition(
    store: Annotated[Path, typer.Argument(help="The store to divide; it stays as it is.")],
    parts: Annotated[int, typer.Option(min=1, help="How many parts.")],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    order: OrderOption = "neighbours",
    overwrite: Annotated[bool, typer.Option(help="Replace an existing folder of parts.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Divide a store into parts, for processes or machines that hold one part each.

    A part has a range of nodes, their features, labels, masks and ids, and the edges that begin at
    them. The order neighbours keeps most edges within a part, and parts differ in size by a few
    per cent; hash spreads nodes evenly; as-is keeps the numbers of the nodes. Otherwise nodes are
    numbered anew, and nodes without ids get their old numbers as ids. Memory use is bounded.

    A typed store is divided as well: a part then has a range of the nodes of every type, and the
    edges of every relation that its nodes receive along, in both directions.

    Examples:

        graphcl partition STORE --parts 4 --out parts

        graphcl partition STORE --parts 16 --order hash --out parts --json
    """
    began = time.perf_counter()
    check_order("partition", order)

    def show(step: str) -> None:
        print(f"{time.perf_counter() - began:6.1f} s  {step}", file=sys.stderr, flush=True)

    partition_store(store, out=out, parts=parts, order=order, overwrite=overwrite, on_step=show)
    print_parts(out, time.perf_counter() - began, as_json=as_json)
