"""What commands say of a store in parts, and the option that orders its nodes."""

from pathlib import Path
from typing import Annotated, Any

import typer

from graphcl.cli.options import print_result
from graphcl.errors import counted, require
from graphcl.store.parts import ORDERS, Parts, is_parts, read_parts
from graphcl.store.typed_parts import TypedParts, is_typed_parts, read_typed_parts

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
    path: Path, seconds: float, more: dict[str, Any] | None = None, *, as_json: bool
) -> None:
    """Prints what a folder of parts holds."""
    parts = any_parts(path)
    about = {**parts_figures(parts), "seconds": seconds, **(more or {})}
    print_result(about, f"{path}: {describe(parts)}", as_json=as_json)


def is_any_parts(path: Path) -> bool:
    """Returns whether a folder looks like a store in parts, plain or typed."""
    return is_parts(path) or is_typed_parts(path)


def any_parts(path: Path) -> Parts | TypedParts:
    """Reads what a folder of parts says, of a plain graph or of a typed one."""
    return read_typed_parts(path) if is_typed_parts(path) else read_parts(path)


def parts_figures(parts: Parts | TypedParts) -> dict[str, Any]:
    """Returns the figures by which a graph in parts is described."""
    about = {
        "parts": str(parts.path),
        "build": parts.build,
        "order": parts.order,
        "nodes": parts.num_nodes,
        "edges": parts.num_edges,
        "cut_edges": parts.cut_edges,
        "cut_share": parts.cut_share,
    }
    if isinstance(parts, Parts):
        return about | {"features": parts.num_features, "starts": parts.starts.tolist()}
    about["types"] = {
        name: {
            "nodes": one.num_nodes,
            "features": one.num_features if name in parts.featured else 0,
            "starts": one.starts.tolist(),
        }
        for name, one in parts.types.items()
    }
    about["relations"] = {
        ":".join(key): {"edges": one.num_edges, "cut_edges": one.cut_edges}
        for key, one in parts.relations.items()
    }
    return about


def describe(parts: Parts | TypedParts) -> str:
    """Returns one line on a graph in parts."""
    if isinstance(parts, Parts):
        sizes = (parts.starts[1:] - parts.starts[:-1]).tolist()
        holds, more = counted(parts.num_features, "feature"), ""
    else:
        sizes = parts.sizes
        holds, more = _types(parts), _cuts(parts)
    least, most = min(sizes), max(sizes)
    each = counted(most, "node") if least == most else f"{least:,} to {most:,} nodes"
    return (
        f"{parts.name!r}: {counted(parts.num_nodes, 'node')}, {counted(parts.num_edges, 'edge')}, "
        f"{holds} in {counted(len(parts), 'part')} of {each}; "
        f"{100 * parts.cut_share:.1f} % of the edges are cut{more}"
    )


def _types(parts: TypedParts) -> str:
    types = counted(len(parts.types), "type")
    return f"{types} and {counted(len(parts.relations), 'relation')}"


def _cuts(parts: TypedParts) -> str:
    """Returns the share of each relation that is cut, if there are several."""
    several = [one for one in parts.relations.values() if one.num_edges]
    if len(several) < 2:
        return ""
    shares = [f"{one.key[1]} {100 * one.cut_edges / one.num_edges:.1f} %" for one in several]
    return f" ({', '.join(shares)})"
