"""`graphcl check`: is this store what was written?"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from graphcl.cli._shared.options import JsonOption, print_json
from graphcl.graphs.graph import Graph
from graphcl.store.reader import verify_store


def check(
    store: Annotated[Path, typer.Argument(help="A store.")],
    as_json: JsonOption = False,
) -> None:
    """Compare every byte of a store with its checksums, and scan its structure.

    Other commands scan the structure alone, which takes a second per 10⁹ bytes or less: enough for
    safety, since it is what their loops rely on, but blind to a changed feature.

    Examples:

        graphcl check STORE

        graphcl check STORE --json
    """
    graph = Graph.open(store)
    graph.check()
    read = {}

    def note(name: str, size: int) -> None:
        read[name] = size
        print(f"{name}: {size:,} bytes, as written", file=sys.stderr, flush=True)

    verify_store(store, on_array=note)
    if as_json:
        about = {"store": str(store), "nodes": graph.num_nodes, "edges": graph.num_edges}
        print_json(about | {"features": graph.num_features, "bytes": read})
    else:
        print(f"{graph!r}: as written, {sum(read.values()):,} bytes")
