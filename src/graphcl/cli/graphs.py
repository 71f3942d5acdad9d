"""Graphs on the command line: loads them by name, or as the graph that a run was trained on.

A run's `config.toml` names its graph, and a run may come from anybody. A list of edges is read by
DuckDB, which executes queries and opens whatever file they name. So tables that a run names are
read only if this user's key has sealed the run. A dataset is fixed. An `.npz` or a store is read by
readers that trust nothing, and is used only if it has the fingerprint that the run gives.
"""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from graphcl.cli.table_options import as_arguments, print_notes
from graphcl.datasets import CATALOGUE
from graphcl.errors import (
    DatasetError,
    GraphCLError,
    ParameterError,
    RunError,
    counted,
    require,
)
from graphcl.graphs.collection import GraphCollection, Labelled, fingerprint
from graphcl.graphs.graph import Graph
from graphcl.opening import AnyGraph, open_graph
from graphcl.runs import files as runs
from graphcl.runs.nodes import trained_tables
from graphcl.runs.versions import own_graph
from graphcl.store.header import Store, is_store
from graphcl.tabular.build import load_tables
from graphcl.tabular.duck import is_query
from graphcl.tabular.options import FILES, TableOptions
from graphcl.tabular.report import TableReport
from graphcl.tabular.sources import looks_like_tables

FLATTENED = (
    "knows one relation: the graph is flattened, without types, directions, weights and features "
    "of edges"
)


def load_graph(
    name: str | None, tables: TableOptions | None = None, *, said: str = "notes"
) -> AnyGraph:
    """Returns the graph that `name` refers to on a command line.

    Args:
        name: a dataset, a store, an `.npz`, or a list of edges (a file or an SQL query); None if
            all lists of edges are among the options. Of a store in parts, it is the graph that was
            divided, in its own order.
        tables: options for reading tables.
        said: how much is printed of tables; see `print_notes`.
    """
    options = tables or TableOptions()
    if name is None or names_tables(name, options):
        graph, report = read_tables(name, options)
        print_notes(report, said=said)
        return graph
    given = options.given()
    if given:
        option = "--" + next(iter(given)).replace("_", "-")
        raise DatasetError(f"{option} applies only to tables; {name!r} is not a table")
    return open_graph(name, on_note=partial(print, file=sys.stderr))


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


def names_tables(name: str, tables: TableOptions) -> bool:
    """Returns whether `name` is a list of edges; an `.npz` is one if table options are given."""
    if tables.is_typed:
        return True
    return looks_like_tables(name) or (Path(name).suffix == ".npz" and bool(tables.given()))


def run_graph(run: Path) -> str:
    """Returns the graph argument that the run was trained with."""
    return _source(run, runs.read_config(run, baselines=True))


def _source(run: Path, config: runs.RunConfig) -> str:
    own = own_graph(run)
    if own is not None:
        return str(own)
    if not config.origin.graph:
        raise RunError(f"{run}: does not say which graph it was trained on; name one")
    return config.origin.graph


def load_run_graph(
    run: Path,
    given: str | None = None,
    tables: TableOptions | None = None,
    *,
    again: tuple[str, ...],
) -> AnyGraph:
    """Returns the graph that a run was trained on; of a version, the graph that it keeps.

    Of another system's run, a graph with types is flattened.

    Args:
        run: the run.
        given: the graph as the command line names it; None means the one that the run names.
        tables: options for reading `given`.
        again: the command under way, to which a refusal adds the run's graph.

    Raises:
        UntrustedRunError: the run names a graph that is not read on its word.
        RunError: the graph cannot be read, or it has changed.
    """
    config, options = runs.read_config(run, baselines=True), tables or TableOptions()
    source, trained = _source(run, config) if given is None else given, trained_tables(run, config)
    own = own_graph(run)
    if given is None and options.edges is None and own is not None:
        require(not options.given(), again[0], "--graph", "given with table options", None)
        options = TableOptions()  # it is in the run: a reader that trusts nothing opens it
    elif given is None and options.edges is None:
        name = "GRAPH" if again[0] == "embed" else "--graph"
        require(not options.given(), again[0], name, "given with table options", None)
        options = trained or options
        if not config.is_sealed:
            _require_harmless(run, config.origin, options, again)
        source, options = _moved(run, source, options)
    else:
        source = given or _first(options)
        if trained is not None and names_tables(source, options):
            options = as_trained(run, options.after(trained))
    hint = "; it was updated and keeps its graph: leave --graph out" if given and own else ""
    try:
        graph = load_graph(source, options, said="notes" if given else "guesses")
    except GraphCLError as error:
        raise RunError(f"{error} (the graph that {run} was trained on){hint}") from None
    expected = config.origin.fingerprint
    if expected and graph_fingerprint(graph) != expected:
        raise RunError(f"{run}: {source} is not the graph that the run was trained on{hint}")
    return graph.flatten() if config.method and isinstance(graph, Graph) else graph


def _moved(run: Path, source: str, options: TableOptions) -> tuple[str, TableOptions]:
    """Returns the files that a run names as they are called from here.

    The run names them as they were called where it was trained. If there is no such file here, it
    is looked for beside the run and in the folders above; the fingerprint says if it is the one.
    """
    if _is_here(source, Path()) or is_query(source) or source.lower() in CATALOGUE:
        return source, options
    for folder in run.absolute().parents:
        if _is_here(source, folder):
            files = {name: getattr(options, name) for name in FILES}
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


class UntrustedRunError(RunError):
    """A run that this user did not write names a graph that is not read on its word."""


def _require_harmless(
    run: Path, origin: runs.Origin, options: TableOptions, again: tuple[str, ...]
) -> None:
    """Refuses tables, and files without a fingerprint, that an unsealed run names."""
    tables = names_tables(origin.graph, options)
    if not tables and (origin.graph.lower() in CATALOGUE or origin.fingerprint):
        return
    added = as_arguments(options) if tables else []
    positional = again[0] == "embed"
    words = ["graphcl", *again]
    named = [] if options.edges is not None else [origin.graph]
    words[3:3] = [*([] if positional or not named else ["--graph"]), *named, *added]
    command = shlex.join(words)
    nodes = f" with nodes {_shown(str(options.nodes))}" if options.nodes else ""
    how = "name the graph on the command line"
    # What a terminal would not show, or a paste would change, is not offered for pasting.
    if command.isprintable() and command == " ".join(command.split()) and len(command) < 2000:
        how = f"give it yourself: {command}"
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


def run_tables(run: Path) -> TableOptions | None:
    """Returns the table options that a run was trained with, or None if it used no tables.

    A run that was trained on a store has the preparation that the store was built with.
    """
    return trained_tables(run, runs.read_config(run, baselines=True))


def graph_name(name: str | None, tables: TableOptions, owner: str) -> str:
    """Returns how a run names its graph: as the command line does, or by its first list of edges.

    Raises:
        ParameterError: there is neither.
    """
    if name is None:
        missing = "Missing argument 'GRAPH': a dataset, a store, an .npz or a list of edges"
        if tables.edges is None:
            raise ParameterError(f"{owner}: {missing}")
        return _first(tables)
    return name


def _first(tables: TableOptions) -> str:
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


def note(graph: Labelled) -> str:
    """Returns the note that every score on `graph` needs, mostly none."""
    return graph.note if isinstance(graph, GraphCollection) else ""


def store_figures(store: Store) -> dict[str, Any]:
    """Returns the figures by which a store is described."""
    about: dict[str, Any] = {
        "store": str(store.path),
        "parts": len(store),
        "build": store.build,
        "order": store.order,
        "nodes": store.num_nodes,
        "edges": store.num_edges,
        "features": store.num_features,
        "cut_edges": store.cut_edges,
        "cut_share": store.cut_share,
    }
    about["types"] = {
        name: {
            "nodes": one.num_nodes,
            "features": one.num_features,
            "starts": one.starts.tolist(),
        }
        for name, one in store.types.items()
    }
    about["relations"] = {
        ":".join(key): {
            "edges": one.num_edges,
            "undirected": one.undirected,
            "cut_edges": one.cut_edges,
        }
        for key, one in store.relations.items()
    }
    if len(store) == 1:
        classes = {name: one.num_classes for name, one in Graph.open(store.path).nodes.items()}
        about["classes"] = sum(classes.values())
        for name, count in classes.items():
            about["types"][name]["classes"] = count
    return about


def describe_store(store: Store) -> str:
    """Returns one line on a store."""
    if len(store) == 1:
        return repr(Graph.open(store.path))
    least, most = min(store.sizes), max(store.sizes)
    each = counted(most, "node") if least == most else f"{least:,} to {most:,} nodes"
    types, relations = len(store.types), len(store.relations)
    holds = f"{counted(types, 'type')} and {counted(relations, 'relation')}"
    if store.is_plain:
        holds = counted(store.num_features, "feature")
    several = [one for one in store.relations.values() if one.num_edges]
    shares = [f"{one.key[1]} {100 * one.cut_edges / one.num_edges:.1f} %" for one in several]
    more = f" ({', '.join(shares)})" if len(several) > 1 else ""
    return (
        f"{store.name!r}: {counted(store.num_nodes, 'node')}, {counted(store.num_edges, 'edge')}, "
        f"{holds} in {counted(len(store), 'part')} of {each}; "
        f"{100 * store.cut_share:.1f} % of the edges are cut{more}"
    )
