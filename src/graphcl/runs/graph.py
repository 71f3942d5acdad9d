"""The graph that a run was trained on, as far as the run keeps or names it.

A run's `config.toml` names its graph, and a run may come from anybody. A list of edges is read by
DuckDB, which executes queries and opens whatever file they name. So tables that a run names are
read only if this user's key has sealed the run. A dataset is fixed. An `.npz` or a store is read by
readers that trust nothing, and is used only if it has the fingerprint that the run gives.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from graphcl.datasets import CATALOGUE
from graphcl.errors import DatasetError, GraphCLError, RunError, option, require
from graphcl.files.remote import local
from graphcl.graphs.collection import GraphCollection, fingerprint
from graphcl.graphs.graph import Graph
from graphcl.opening import AnyGraph, open_graph
from graphcl.runs import files as runs
from graphcl.runs.nodes import trained_tables
from graphcl.runs.versions import VERSIONS, OwnGraphError, own_graph, own_graph_read, run_root
from graphcl.store.header import is_store
from graphcl.tabular.build import load_tables, open_prepared
from graphcl.tabular.duck import is_query
from graphcl.tabular.options import FILES, TableOptions
from graphcl.tabular.report import TableReport
from graphcl.tabular.sources import looks_like_tables


class UntrustedRunError(RunError):
    """A run that this user did not write names a graph that is not read on its word."""


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


def run_graph(run: Path) -> str:
    """Returns the graph that a run was trained on, as it was named; of a version, its own."""
    own, named = own_graph(run), runs.read_config(run, baselines=True).origin.graph
    if own is None and not named:
        raise RunError(f"{run}: does not say which graph it was trained on; pass {option('graph')}")
    return str(own or named)


def read_run_graph(
    run: Path,
    given: str | None = None,
    tables: TableOptions | None = None,
    *,
    owner: str = "Run",
    name: str = "graph",
    load: Callable[[str | None, TableOptions], AnyGraph] = open_named,
    propose: Callable[[runs.Origin, TableOptions], str] = lambda *_: "pass it as graph=",
) -> AnyGraph:
    """Returns the graph that a run was trained on; of a version, the graph that it keeps.

    Of another system's run, a graph with types is flattened.

    Args:
        run: the run, or one of its versions.
        given: the graph as the caller names it; None means the one that the run names.
        tables: options for reading `given`.
        owner: begins messages.
        name: what the caller calls `given`.
        load: opens a graph by its name and options.
        propose: says how to name the graph that is not read on the word of the run.

    Raises:
        UntrustedRunError: the run names a graph that is not read on its word.
        RunError: the graph cannot be read, or it has changed.
    """
    config, options = runs.read_config(run, baselines=True), tables or TableOptions()
    trained, own = trained_tables(run), own_graph(run)
    source = run_graph(run) if given is None else given
    if given is None and options.edges is None:
        require(not options.given(), owner, name, "given with table options", None)
        if own is not None:  # a reader that trusts nothing opens it
            with own_graph_read(run):
                return open_prepared(own)
        options = trained or options
        if not config.is_sealed:
            _require_harmless(run, config.origin, options, propose)
        source, options = _moved(run, source, options)
    else:
        source = given or first_list(options)
        if trained is not None and names_tables(source, options):
            options = as_trained(run, options.after(trained))
    hint = f"; it keeps its graph: leave {name} out" if given and own else ""
    try:
        graph = load(source, options)
    except GraphCLError as error:
        raise RunError(f"{error} (the graph that {run} was trained on){hint}") from None
    check_graph(run, graph, source, name)
    return graph.flatten() if config.method and isinstance(graph, Graph) else graph


def if_readable(
    read: Callable[[], AnyGraph], given: Any, on_note: Callable[[str], object], *, hint: str = ""
) -> tuple[AnyGraph | None, str]:
    """Returns a graph, or None and the reason why it cannot be read.

    Raises:
        RunError: it was given and cannot be read, or the version keeps it; or, with a hint at how
            to do without it, it is not read on the run's word.
    """
    try:
        return read(), ""
    except GraphCLError as error:
        if hint and isinstance(error, UntrustedRunError):
            raise RunError(f"{error}, {hint}") from None
        if given is not None or isinstance(error, OwnGraphError):
            raise
        on_note(f"{error}; continuing without the graph")
        return None, str(error)


def run_tables(run: Path) -> tuple[str, TableOptions]:
    """Returns the list of edges that a run was trained on, and how its tables are read.

    Args:
        run: the run, or the folder of one of its versions, which may be as of a later day.

    Raises:
        UntrustedRunError: the tables are not read on the word of the run.
        RunError: it was trained on something else.
    """
    root = run_root(run)
    config, trained = runs.read_config(root, baselines=True), trained_tables(run)
    if not config.origin.tables or trained is None:
        raise RunError(f"{root}: was not trained on tables, so nothing says what came when")
    if not (config.is_sealed and runs.read_config(run, baselines=True).is_sealed):
        _require_harmless(root, config.origin, trained, lambda *_: "train it yourself")
    source, options = _moved(root, config.origin.graph, trained)
    return source, as_trained(run, options)


def check_graph(run: Path, graph: AnyGraph, source: str = "this", name: str = "graph") -> None:
    """Refuses a graph that is not that of a run, or of one of its versions.

    A fingerprint looks at few of a graph's numbers, and versions differ in few. So the graph of a
    version is known by where it is, too.

    Args:
        run: the run, or the folder of one of its versions.
        graph: the graph.
        source: what it was read from.
        name: how the caller gave it.

    Raises:
        RunError: it is another.
    """
    root, own, advice = run_root(run), own_graph(run), "give the training's"
    at = f"{root}: is at version {run.name if run != root else 0}"
    store = graph.store if isinstance(graph, Graph) else None
    given = None if store is None else store.resolve()
    if own is not None:
        if given == own.resolve():
            return
        advice = f"it keeps its graph: leave {name} out"
    if given is not None and given.parent.parent == (root / VERSIONS).resolve():
        raise RunError(f"{at}, and the graph is that of version {given.parent.name}; {advice}")
    if own is not None:
        raise RunError(f"{at}; {advice}")
    expected = runs.read_config(run, baselines=True).origin.fingerprint
    if expected and graph_fingerprint(graph) != expected:
        raise RunError(f"{run}: {source} is not the graph that the run was trained on")


def _moved(run: Path, source: str, options: TableOptions) -> tuple[str, TableOptions]:
    """Returns the files that a run names as they are called from here.

    The run names them as they were called where it was trained. If there is no such file here, it
    is looked for beside the run and in the folders above; the fingerprint says if it is the one.
    What is not on a machine is fetched.
    """
    files = {name: local(getattr(options, name)) for name in FILES}
    source, options = local(source), replace(options, **files)
    if _is_here(source, Path()) or is_query(source) or source.lower() in CATALOGUE:
        return source, options
    for folder in run.absolute().parents:
        if _is_here(source, folder):
            found = {name: _within(folder, one) for name, one in files.items()}
            return str(folder / source), replace(options, **found)
    return source, options


def _within(folder: Path, given: Any) -> Any:
    """Returns a file, or files by name, as they are called in a folder, if they are there."""
    if isinstance(given, Mapping):
        return {name: _within(folder, one) for name, one in given.items()}
    if isinstance(given, tuple):
        return tuple(_within(folder, one) for one in given)
    if not isinstance(given, str):
        return given
    kind, equals, rest = given.partition("=")
    if equals and not _is_here(given, folder) and _is_here(rest, folder):  # ``paper=vectors.npy``
        return f"{kind}={folder / rest}"
    return str(folder / given) if _is_here(given, folder) else given


def _is_here(text: str, folder: Path) -> bool:
    """Returns whether a file, ``FILE:TABLE``, a store or a folder of tables is in a folder."""
    path, before = folder / text, text.rpartition(":")[0]
    try:
        if path.is_file() or (before and (folder / before).is_file()):
            return True
        return is_store(path) or (path.is_dir() and looks_like_tables(str(path)))
    except OSError:  # a query may be too long for a name
        return False


def _require_harmless(
    run: Path,
    origin: runs.Origin,
    options: TableOptions,
    propose: Callable[[runs.Origin, TableOptions], str],
) -> None:
    """Refuses what an unsealed run names: tables, files elsewhere or without a fingerprint."""
    tables, elsewhere = names_tables(origin.graph, options), "://" in origin.graph + origin.tables
    fixed = origin.graph.lower() in CATALOGUE or origin.fingerprint
    if fixed and not (tables or elsewhere):
        return
    nodes = f" with nodes {_shown(str(options.nodes))}" if options.nodes else ""
    how = propose(origin, options if tables else TableOptions())
    raise UntrustedRunError(
        f"{run}: names the graph {_shown(origin.graph)}{nodes}, which is not read on the word of "
        "a run that this user's key has not sealed (another user wrote it, or "
        f"it was changed); if you trust it, {how}"
    )


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
