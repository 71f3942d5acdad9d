"""What commands say of a store in parts, and the option that orders its nodes."""

from typing import Annotated, Any

import typer

from graphcl.cli._shared.options import print_result
from graphcl.errors import counted, require
from graphcl.store.parts import ORDERS, Parts

OrderOption = Annotated[
    str,
    typer.Option(
        metavar="|".join(ORDERS),
        help="How nodes are divided: neighbours together, spread by a hash, or in ranges as they "
        "are.",
    ),
]


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
        f"{counted(parts.num_features, 'feature')} in {len(parts)} parts of {min(sizes):,} to "
        f"{max(sizes):,} nodes; {100 * parts.cut_share:.1f} % of the edges are cut"
    )
