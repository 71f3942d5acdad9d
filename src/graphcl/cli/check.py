"""`graphcl check`: compares stores with their checksums, or says how tables would be read."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from graphcl.cli.options import JsonOption, print_result
from graphcl.cli.table_options import print_notes, takes_tables
from graphcl.errors import StoreError, counted
from graphcl.runs.files import CONFIG
from graphcl.store.header import HEADER, is_store, part_name, read_store
from graphcl.tabular.options import TableOptions


@takes_tables
def check(
    graph: Annotated[
        str | None,
        typer.Argument(
            metavar="STORE|EDGES",
            help="A store, whole or in parts, a list of edges, an .npz or a dataset; not needed "
            "with --edges.",
        ),
    ] = None,
    tables: TableOptions = TableOptions(),  # noqa: B008 (frozen)
    as_json: JsonOption = False,
) -> None:
    """Say what would become of tables, or compare a store with its checksums.

    Of a store, every byte is compared, and the structure is scanned. Other commands only scan the
    structure, which takes at most a second per 10⁹ bytes. That is enough for safety, because their
    loops rely on the structure, but it misses a changed feature. Of a store in parts, every part is
    checked so.

    Of tables, it says what train and build would make of them: what is guessed, merged and filled
    in, and what becomes of each column; or all that is wrong with them, and a command that settles
    it. Nothing is written.

    Examples:

        graphcl check STORE

        graphcl check PARTS

        graphcl check edges.csv --nodes nodes.parquet --label topic

        graphcl check edges.csv --nodes nodes.csv --strict --json

        graphcl check --nodes author=authors.csv --nodes paper=papers.csv --edges writes=writes.csv
    """
    from graphcl.cli.graphs import graph_name, load_graph
    from graphcl.runs.graph import names_tables
    from graphcl.tabular.build import check_tables, load_tables

    name = graph_name(graph, tables, "check")
    path = Path(name)
    if names_tables(name, tables) and not is_store(path):
        if tables.is_typed:
            found, report = load_tables(graph, tables)
            print_notes(report, whole=True)
            _describe(name, found, as_json=as_json, found=report.to_json())
            return
        counts, report = check_tables(name, tables)
        print_notes(report, whole=True)
        words = {name: name.removesuffix("es" if name == "classes" else "s") for name in counts}
        shown = ", ".join(
            counted(count, words[name], name) for name, count in counts.items() if count
        )
        about = {"graph": name, **counts, "found": report.to_json()}
        print_result(about, f"{name}: {shown}", as_json=as_json)
        return
    if tables.given():
        option = "--" + next(iter(tables.given())).replace("_", "-")
        raise StoreError(f"{option} applies only to tables; {name!r} is not a table")
    if is_store(path):
        _check_store(path, as_json=as_json)
    elif (path / part_name(0)).is_dir():
        raise StoreError(f"{path / HEADER}: missing; the folder has parts, which it lists")
    elif (path / CONFIG).is_file():
        raise StoreError(
            f"{name}: is a run, not a store; what is in it: graphcl report {shlex.quote(name)}"
        )
    elif path.is_dir():
        read_store(path)  # says what is missing
    else:  # an .npz or a dataset, which has no checksums
        _describe(name, load_graph(name), as_json=as_json)


def _check_store(path: Path, *, as_json: bool) -> None:
    """Compares every byte of a store."""
    from graphcl.cli.graphs import describe_store, store_figures
    from graphcl.store.reader import verify_store

    sizes = dict[str, int]()

    def show(name: str, size: int) -> None:
        sizes[name] = size
        print(f"{name}: {size:,} bytes, unchanged", file=sys.stderr, flush=True)

    store = verify_store(path, on_array=show)
    text = f"{path}: {describe_store(store)}; unchanged, {sum(sizes.values()):,} bytes"
    print_result(store_figures(store) | {"bytes": sizes}, text, as_json=as_json)


def _describe(name: str, graph: Any, *, as_json: bool, **more: Any) -> None:
    """Says what a graph that is no store has, and how its missing features are filled in."""
    from graphcl.graphs.filling import describe_filling, fill_features

    about = {"graph": name, "nodes": graph.num_nodes, "edges": graph.num_edges, **more}
    if graph.is_plain:
        about["features"] = graph.num_features
        print_result(about, f"{graph!r}", as_json=as_json)
        return
    filled = describe_filling(fill_features(graph)[1])
    if filled:
        print(filled, file=sys.stderr)
    counts = ("nodes", "features", "classes")
    about["types"] = {
        kind: {count: getattr(one, f"num_{count}") for count in counts}
        for kind, one in graph.nodes.items()
    }
    about["relations"] = {
        ":".join(key): {"edges": one.num_edges, "undirected": one.undirected}
        for key, one in graph.relations.items()
    }
    print_result(about, f"{name}: {graph.describe()}", as_json=as_json)
