"""`graphcl check`: compares a store with its checksums."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from graphcl.cli._shared.options import JsonOption, print_result
from graphcl.graphs.graph import Graph
from graphcl.store.reader import verify_store


def check(
    store: Annotated[Path, typer.Argument(help="A store.")],
    as_json: JsonOption = False,
) -> None:
    """Compare every byte of a store with its checksums, and scan its structure.

    Other commands only scan the structure, which takes at most a second per 10⁹ bytes. That is
    enough for safety, because their loops rely on the structure, but it misses a changed feature.

    Examples:

        graphcl check STORE

        graphcl check STORE --json
    """
    graph = Graph.open(store)
    graph.check()
    sizes = {}

    def show(name: str, size: int) -> None:
        sizes[name] = size
        print(f"{name}: {size:,} bytes, unchanged", file=sys.stderr, flush=True)

    verify_store(store, on_array=show)
    about = {"store": str(store), "nodes": graph.num_nodes, "edges": graph.num_edges}
    about |= {"features": graph.num_features, "bytes": sizes}
    text = f"{graph!r}: unchanged, {sum(sizes.values()):,} bytes"
    print_result(about, text, as_json=as_json)
