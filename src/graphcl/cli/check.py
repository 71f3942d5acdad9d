"""`graphcl check`: compares a store with its checksums, or says how tables would be read."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from graphcl.cli._shared.graphs import names_tables
from graphcl.cli._shared.options import JsonOption, print_result
from graphcl.cli._shared.tables import print_notes, takes_tables
from graphcl.errors import StoreError
from graphcl.graphs.graph import Graph
from graphcl.store.reader import is_store, verify_store
from graphcl.tabular.build import check_tables
from graphcl.tabular.options import TableOptions, counted


@takes_tables
def check(
    graph: Annotated[
        str, typer.Argument(metavar="STORE|EDGES", help="A store, or a list of edges.")
    ],
    tables: TableOptions = TableOptions(),  # noqa: B008 (frozen)
    as_json: JsonOption = False,
) -> None:
    """Compare a store with its checksums, or say what would become of tables.

    Of a store, every byte is compared, and the structure is scanned. Other commands only scan the
    structure, which takes at most a second per 10⁹ bytes. That is enough for safety, because their
    loops rely on the structure, but it misses a changed feature.

    Of tables, it says what train and build would make of them: what is guessed, merged and filled
    in, and what becomes of each column; or all that is wrong with them, and a command that settles
    it. Nothing is written.

    Examples:

        graphcl check STORE

        graphcl check edges.csv --nodes nodes.parquet --label topic

        graphcl check edges.csv --nodes nodes.csv --strict --json
    """
    if names_tables(graph, tables) and not is_store(Path(graph)):
        counts, report = check_tables(graph, tables)
        print_notes(report)
        words = {name: name.removesuffix("es" if name == "classes" else "s") for name in counts}
        shown = ", ".join(
            counted(count, words[name], name) for name, count in counts.items() if count
        )
        about = {"graph": graph, **counts, "found": report.to_json()}
        print_result(about, f"{graph}: {shown}", as_json=as_json)
        return
    if tables.given():
        option = "--" + next(iter(tables.given())).replace("_", "-")
        raise StoreError(f"{option} applies only to tables; {graph!r} is not a table")
    _check_store(Path(graph), as_json=as_json)


def _check_store(store: Path, *, as_json: bool) -> None:
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
