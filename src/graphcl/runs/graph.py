"""The graph that a run was trained on: the run keeps it, or names a dataset or a store.

Files change and are moved, so a run keeps what it was trained on: tables and `.npz` files become a
store in the folder ``graph`` of the run. A dataset is fixed. A store stays where it is, and is
known by the id of its build.

A run may come from anybody. A list of edges is read by DuckDB, which executes queries and opens
whatever file they name. So nothing but a dataset and a store is read because a run names it: their
readers trust nothing. Tables are named by the caller, each time.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphcl.datasets import CATALOGUE
from graphcl.errors import DatasetError, GraphCLError, RunError, option, require
from graphcl.graphs.collection import GraphCollection, fingerprint, fingerprints
from graphcl.graphs.graph import Graph
from graphcl.opening import AnyGraph, open_graph
from graphcl.runs import files as runs
from graphcl.runs.files import GRAPH
from graphcl.runs.nodes import trained_tables
from graphcl.runs.versions import (
    numbers,
    own_graph,
    own_graph_read,
    run_root,
    share_file,
    version_folder,
)
from graphcl.store.header import is_store, read_store
from graphcl.tabular.build import load_tables, open_prepared, write_prepared
from graphcl.tabular.options import FILES, TableOptions, short_name
from graphcl.tabular.report import TableReport
from graphcl.tabular.sources import looks_like_tables

Load = Callable[[str | None, TableOptions], AnyGraph]
Propose = Callable[[runs.Origin, TableOptions], str]


def names_tables(name: str, tables: TableOptions) -> bool:
    """Returns whether `name` is a list of edges; an `.npz` is one if table options are given."""
    if tables.is_typed:
        return True
    return looks_like_tables(name) or (Path(name).suffix == ".npz" and bool(tables.given()))


def open_named(
    name: str | None,
    options: TableOptions,
    *,
    on_report: Callable[[TableReport], object] = lambda _: None,
    on_note: Callable[[str], None] = lambda _: None,
) -> AnyGraph:
    """Returns the graph that a name refers to: whatever `open_graph` takes, or tables.

    Args:
        name: None if all lists of edges are among the options.
        options: how tables are read.
        on_report: is told what was read of tables.
        on_note: is told whatever else a reader notes.

    Raises:
        DatasetError: the options are of tables, and `name` is none.
    """
    if name is None or names_tables(name, options):
        graph, report = read_tables(name, options)
        on_report(report)
        return graph
    given = options.given()
    if given:
        option = "--" + next(iter(given)).replace("_", "-")
        raise DatasetError(f"{option} applies only to tables; {name!r} is not a table")
    return open_graph(name, on_note=on_note)


def read_tables(name: str | None, options: TableOptions) -> tuple[Graph, TableReport]:
    """Reads tables, as `load_tables` does.

    Raises:
        DatasetError: `name` is not a list of edges.
    """
    known = name is None or looks_like_tables(name) or Path(name).suffix == ".npz"
    if not known and name not in (options.edges or {}).values():
        given = [one for one in ("edges", "relation", "directed", "nodes") if getattr(options, one)]
        raise DatasetError(f"--{given[0]} applies only to tables; {name!r} is not one")
    return load_tables(name, options)


def keep_graph(folder: Path, graph: Graph) -> None:
    """Writes a graph into the folder of a run, with what made its features, and its cells.

    What is mapped from a store is a second name of the store's files where the disk has links.
    """
    share = share_file if graph.store is not None else None
    write_prepared(graph, folder / GRAPH, share=share)


def run_graph(run: Path) -> str:
    """Returns the graph that a run was trained on, as it was named; of a version, its own."""
    own, named = own_graph(run), runs.read_config(run, baselines=True).origin.graph
    if own is not None and run_root(run) != run:
        return str(own)
    if not named:
        raise RunError(f"{run}: does not say which graph it was trained on; pass {option('graph')}")
    return named


def read_run_graph(
    run: Path,
    given: str | None = None,
    tables: TableOptions | None = None,
    *,
    owner: str = "Run",
    name: str = "graph",
    load: Load = open_named,
    propose: Propose = lambda *_: "pass it as graph=",
) -> AnyGraph:
    """Returns the graph that a run was trained on, which it keeps, or which is a dataset or store.

    Of another system's run, a graph with types is flattened.

    Args:
        run: the run, or one of its versions.
        given: the graph as the caller names it; None means the run's own.
        tables: options for reading `given`.
        owner: begins messages.
        name: what the caller calls `given`.
        load: opens a graph by its name and options.
        propose: says how to name the graph of a run that does not keep it.

    Raises:
        RunError: the graph is neither kept nor given, cannot be read, or has changed.
    """
    config, options = runs.read_config(run, baselines=True), tables or TableOptions()
    if given is None and options.edges is None:
        require(not options.given(), owner, name, "given with table options", None)
        graph = _trained_graph(run, load, propose)
    else:
        graph = _given_graph(run, given, options, name, load)
    return graph.flatten() if config.method and isinstance(graph, Graph) else graph


def _trained_graph(run: Path, load: Load, propose: Propose) -> AnyGraph:
    """Returns the graph that a run keeps; or the dataset or the store that it names."""
    own = own_graph(run)
    if own is not None:  # a reader that trusts nothing opens it
        with own_graph_read(run):
            return open_prepared(own)
    source, origin = run_graph(run), runs.read_config(run, baselines=True).origin
    if source.lower() not in CATALOGUE:
        store = trained_store(run)
        if store is None:
            how = propose(origin, trained_tables(run) or TableOptions())
            raise RunError(
                f"{run}: does not keep the graph that it was trained on ({_shown(source)}); {how}"
            )
        source = str(store)
    try:
        graph = load(source, TableOptions())
    except GraphCLError as error:
        raise RunError(f"{error} (the graph that {run} was trained on)") from None
    check_graph(run, graph, source)
    return graph


def _given_graph(
    run: Path, given: str | None, options: TableOptions, name: str, load: Load
) -> AnyGraph:
    """Returns the graph that the caller names, if it is that of the run."""
    source, trained = given or first_list(options), trained_tables(run)
    if trained is not None and names_tables(source, options):
        options = as_trained(run, options.after(trained))
    try:
        graph = load(source, options)
    except GraphCLError as error:
        hint = f"; it keeps its graph: leave {name} out" if own_graph(run) else ""
        raise RunError(f"{error} (the graph that {run} was trained on){hint}") from None
    check_graph(run, graph, source, name, tables=options)
    return graph


def trained_store(run: Path) -> Path | None:
    """Returns the store, whole or in parts, that a run was trained on; None if it was none.

    The run names it as it was called where it was trained. If it is not there, it is looked for
    beside the run and in the folders above.

    Raises:
        RunError: it is nowhere, or there is another store of this name.
    """
    origin = runs.read_config(run, baselines=True).origin
    if not origin.build or "://" in origin.graph:  # nothing is fetched on the word of a run
        return None
    advice = "name it where it is now, or train again"
    places = [Path(), *run.absolute().parents]
    found = [place / origin.graph for place in places if _is_store_here(place / origin.graph)]
    if not found:
        raise RunError(
            f"{run}: was trained on the store {_shown(origin.graph)}, which is not there; {advice}"
        )
    if read_store(found[0]).build != origin.build:
        raise RunError(
            f"{run}: {found[0]} is not the graph that the run was trained on: the store has been "
            f"built again since; {advice}"
        )
    return found[0]


def _is_store_here(path: Path) -> bool:
    try:
        return is_store(path)
    except (OSError, ValueError):  # the name is too long, or has a null
        return False


def named_tables(
    run: Path, given: Any, tables: TableOptions, propose: Propose
) -> tuple[Any, TableOptions]:
    """Returns tables that were named anew, and how to read them: as in the training.

    No table is read because a run names it: runs come from anybody.

    Args:
        run: the run, or the folder of one of its versions.
        given: the list of edges; None if all are among the options.
        tables: tables, and options that differ from those of the training.
        propose: says how to name them.

    Raises:
        RunError: no table is named, or the run was trained on something else.
    """
    root = run_root(run)
    origin, trained = runs.read_config(root, baselines=True).origin, trained_tables(root)
    if not origin.tables or trained is None:
        raise RunError(f"{root}: was not trained on tables, so nothing says what came when")
    if given is None and tables.edges is None:
        files = TableOptions(**{name: getattr(trained, name) for name in FILES})
        raise RunError(
            f"{root}: its tables are read once more for this, and a run names no table to read; "
            f"{propose(origin, files)}"
        )
    return given, as_trained(run, tables.again(trained))


def check_graph(
    run: Path,
    graph: AnyGraph,
    source: str = "this",
    name: str = "graph",
    *,
    tables: TableOptions | None = None,
) -> None:
    """Refuses a graph that is not that of a run, or of one of its versions.

    A fingerprint looks at few of a graph's numbers, and versions differ in few. So the graph of a
    version is known by where it is, too.

    Args:
        run: the run, or the folder of one of its versions.
        graph: the graph.
        source: what it was read from.
        name: how the caller gave it.
        tables: how tables were read, if it was read from some.

    Raises:
        RunError: it is another.
    """
    root, own = run_root(run), own_graph(run)
    number = 0 if run == root else int(run.name)
    store = graph.store if isinstance(graph, Graph) else None
    given = None if store is None else store.resolve()
    if own is not None and given == own.resolve():
        return
    advice = "give the training's" if own is None else f"it keeps its graph: leave {name} out"
    for other in numbers(root) if given is not None else ():
        if given == (version_folder(root, other) / GRAPH).resolve():
            raise RunError(
                f"{root}: is at version {number}, and the graph is that of version {other}; "
                f"{advice}"
            )
    if number:
        raise RunError(f"{root}: is at version {number}; {advice}")
    expected = runs.read_config(run, baselines=True).origin.fingerprint
    if not expected or graph_fingerprint(graph) == expected:
        return
    changed = [] if own is None else _changed_files(Graph.open(own), graph, source, tables)
    if not changed:
        raise RunError(f"{run}: {source} is not the graph that the run was trained on")
    has = "has" if len(changed) == 1 else "have"
    raise RunError(
        f"{run}: {' and '.join(changed)} {has} changed since the training; {advice}, train again, "
        f"or take the change over: update with {option('whole', True)}"
    )


def _changed_files(
    own: Graph, graph: AnyGraph, source: str, tables: TableOptions | None
) -> list[str]:
    """Returns which tables differ from those that a kept graph came from.

    Empty if nothing tells, or if none of them is as it was: then it is another graph.
    """
    if tables is None or not names_tables(source, tables) or not isinstance(graph, Graph):
        return []
    before, after = fingerprints(own), fingerprints(graph)
    changed = [part for part, digest in after.items() if before.get(part) != digest]
    if before.keys() != after.keys() or len(changed) == len(after):
        return []
    nodes, several = tables.nodes, isinstance(tables.nodes, Mapping)
    lists = {short_name(key): file for key, file in (tables.edges or {}).items()}
    files = set[str]()
    for part in changed:
        if not isinstance(part, str):
            files.add(str(lists.get(part[1], source)))
        elif several:
            files.add(str(nodes.get(part, source)))
        else:
            files.add(str(nodes or source))
    return sorted(files)


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 300 else f"{text[:300]!r}…"


def graph_fingerprint(graph: AnyGraph) -> str:
    """Returns a short hash by which a run recognises the graph that it was trained on."""
    return fingerprint(graph.graphs if isinstance(graph, GraphCollection) else (graph,))


def first_list(tables: TableOptions) -> str:
    """Returns the first list of edges among the options."""
    return str(next(iter(tables.edges.values())))


def as_trained(run: Path, options: TableOptions) -> TableOptions:
    """Returns options in which relations join the types that they joined in training."""
    if options.edges is None:
        return options
    known = [one for one in runs.read_schema(run).get("relations", ()) if isinstance(one, dict)]
    edges = {}
    for name, table in options.edges.items():
        same = [one for one in known if one.get("name") == name]
        ends = [f"{one.get('source')}:{name}:{one.get('target')}" for one in same]
        edges[ends[0] if len(ends) == 1 else name] = table
    return replace(options, edges=edges)
