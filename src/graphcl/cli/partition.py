"""`graphcl partition`: divides a store into parts."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from graphcl.cli._shared.options import JsonOption, print_result
from graphcl.errors import require
from graphcl.store.parts import ORDERS, Parts, read_parts
from graphcl.tabular.build import partition_store

OrderOption = Annotated[
    str,
    typer.Option(
        metavar="|".join(ORDERS),
        help="How nodes are divided: neighbours together, spread by a hash, or in ranges as they "
        "are.",
    ),
]


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

    Examples:

        graphcl partition STORE --parts 4 --out parts

        graphcl partition STORE --parts 16 --order hash --out parts --json
    """
    began = time.perf_counter()
    check_order("partition", order)

    def show(step: str) -> None:
        print(f"{time.perf_counter() - began:6.1f} s  {step}", file=sys.stderr, flush=True)

    partition_store(store, out=out, parts=parts, order=order, overwrite=overwrite, on_step=show)
    print_parts(read_parts(out), time.perf_counter() - began, as_json=as_json)


def check_order(command: str, order: str) -> None:
    """Refuses an unknown order before any work is done."""
    require(order in ORDERS, command, "--order", f"one of {', '.join(ORDERS)}", order)


def print_parts(
    parts: Parts, seconds: float, more: dict[str, Any] | None = None, *, as_json: bool
) -> None:
    """Prints what a folder of parts holds."""
    about = {**parts_figures(parts), "seconds": seconds, **(more or {})}
    print_result(about, f"{parts.path}: {describe(parts)}", as_json=as_json)


def parts_figures(parts: Parts) -> dict[str, Any]:
    """Returns the figures by which a graph in parts is described."""
    return {
        "parts": str(parts.path),
        "build": parts.build,
        "order": parts.order,
        "nodes": parts.num_nodes,
        "edges": parts.num_edges,
        "features": parts.num_features,
        "cut_edges": parts.cut_edges,
        "cut_share": parts.cut_share,
        "starts": parts.starts.tolist(),
    }


def describe(parts: Parts) -> str:
    """Returns one line on a graph in parts."""
    sizes = (parts.starts[1:] - parts.starts[:-1]).tolist()
    return (
        f"{parts.name!r}: {parts.num_nodes:,} nodes, {parts.num_edges:,} edges, "
        f"{parts.num_features:,} features in {len(parts)} parts of {min(sizes):,} to "
        f"{max(sizes):,} nodes; {100 * parts.cut_share:.1f} % of the edges are cut"
    )
