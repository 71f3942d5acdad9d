"""`graphcl check`: compares stores with their checksums, or says how tables would be read."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from graphcl.cli.graphs import graph_name, load_graph, names_tables, read_tables
from graphcl.cli.options import JsonOption, print_result
from graphcl.cli.parts import any_parts, is_any_parts, parts_figures
from graphcl.cli.parts import describe as describe_parts
from graphcl.cli.table_options import print_notes, takes_tables
from graphcl.errors import StoreError
from graphcl.graphs.filling import describe_filling, fill_features
from graphcl.graphs.graph import Graph
from graphcl.opening import AnyGraph, is_typed_file
from graphcl.runs.files import CONFIG
from graphcl.store.parts import MANIFEST, part_name, verify_part
from graphcl.store.reader import PART, is_store, verify_store
from graphcl.store.typed_parts import MANIFEST as TYPED_MANIFEST
from graphcl.store.typed_parts import is_typed_parts, verify_typed_part
from graphcl.tabular.build import check_tables
from graphcl.tabular.options import TableOptions, counted


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
    """Compare a store with its checksums, or say what would become of tables.

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
    name = graph_name(graph, tables, "check")
    in_parts = is_any_parts(Path(name))
    if tables.is_typed or (is_typed_file(Path(name)) and not in_parts):
        _check_typed(graph, name, tables, as_json=as_json)
        return
    graph = name
    on_disk = is_store(Path(graph)) or in_parts
    if names_tables(graph, tables) and not on_disk:
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
    if in_parts:
        _check_parts(Path(graph), as_json=as_json)
    elif (Path(graph) / part_name(0)).is_dir():
        where = Path(graph) / part_name(0)
        lost = MANIFEST if (where / PART).is_file() else TYPED_MANIFEST
        raise StoreError(f"{Path(graph) / lost}: missing; the folder has parts, which it lists")
    elif (Path(graph) / CONFIG).is_file():
        raise StoreError(
            f"{graph}: is a run, not a store; what is in it: graphcl report {shlex.quote(graph)}"
        )
    elif Path(graph).is_dir():
        _check_store(Path(graph), as_json=as_json)
    else:  # an .npz or a dataset, which has no checksums
        read = load_graph(graph)
        about = {"graph": graph, "nodes": read.num_nodes, "edges": read.num_edges}
        print_result(about | {"features": read.num_features}, f"{read!r}", as_json=as_json)


def _check_parts(path: Path, *, as_json: bool) -> None:
    parts, sizes = any_parts(path), []
    verify: Any = verify_typed_part if is_typed_parts(path) else verify_part
    parts.source.verify(path)
    for number in range(len(parts)):
        arrays: dict[str, int] = {}
        verify(path, number, on_array=arrays.__setitem__)
        sizes.append(sum(arrays.values()))
        print(f"part {number}: {sizes[-1]:,} bytes, unchanged", file=sys.stderr, flush=True)
    text = f"{path}: {describe_parts(parts)}; unchanged, {sum(sizes):,} bytes"
    print_result({**parts_figures(parts), "bytes": sizes}, text, as_json=as_json)


def _check_typed(graph: str | None, name: str, tables: TableOptions, *, as_json: bool) -> None:
    typed: AnyGraph
    found = {}
    if tables.is_typed:
        typed, report = read_tables(graph, tables)
        print_notes(report)
        found = report.to_json()
    else:
        typed = load_graph(name, tables)
    assert isinstance(typed, Graph)
    filled = describe_filling(fill_features(typed)[1])
    if filled:
        print(filled, file=sys.stderr)
    about = {"graph": name, "nodes": typed.num_nodes, "edges": typed.num_edges}
    about |= {"types": _types(typed), "relations": _relations(typed), "found": found}
    print_result(about, f"{name}: {typed.describe()}", as_json=as_json)


def _types(graph: Graph) -> dict[str, dict[str, int]]:
    return {
        name: {
            "nodes": one.num_nodes,
            "features": one.num_features,
            "classes": one.num_classes,
        }
        for name, one in graph.nodes.items()
    }


def _relations(graph: Graph) -> dict[str, dict[str, Any]]:
    return {
        ":".join(key): {"edges": one.num_edges, "undirected": one.undirected}
        for key, one in graph.relations.items()
    }


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
