"""Graphs on the command line: loads them by name, or as the graph that a run was trained on."""

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

from graphcl.cli.table_options import as_arguments, print_notes
from graphcl.errors import ParameterError, counted
from graphcl.graphs.graph import Graph
from graphcl.opening import AnyGraph
from graphcl.runs.files import Origin
from graphcl.runs.graph import first_list, open_named, read_run_graph
from graphcl.store.header import Store
from graphcl.tabular.options import TableOptions

FLATTENED = (
    "knows one relation: the graph is flattened, without types, directions, weights and features "
    "of edges"
)


def load_graph(
    name: str | None, tables: TableOptions | None = None, *, again: bool = False
) -> AnyGraph:
    """Returns the graph that `name` refers to on a command line.

    Args:
        name: a dataset, a store, an `.npz`, or a list of edges (a file or an SQL query); None if
            all lists of edges are among the options. Of a store in parts, it is the graph that was
            divided, in its own order.
        tables: options for reading tables.
        again: whether a training has read the tables; see `print_notes`.
    """
    return open_named(
        name,
        tables or TableOptions(),
        on_report=partial(print_notes, again=again),
        on_note=partial(print, file=sys.stderr),
    )


def load_run_graph(
    run: Path,
    given: str | None = None,
    tables: TableOptions | None = None,
    *,
    again: tuple[str, ...],
) -> AnyGraph:
    """Returns the graph that a run was trained on; of a version, the graph that it keeps.

    Args:
        run: the run.
        given: the graph as the command line names it; None means the one that the run names.
        tables: options for reading `given`.
        again: the command under way, to which a refusal adds the run's graph.

    Raises:
        UntrustedRunError: the run names a graph that is not read on its word.
        RunError: the graph cannot be read, or it has changed.
    """
    return read_run_graph(
        run,
        given,
        tables,
        owner=again[0],
        name="GRAPH" if again[0] == "embed" else "--graph",
        load=partial(load_graph, again=given is None),
        propose=partial(_command, again),
    )


def _command(again: tuple[str, ...], origin: Origin, options: TableOptions) -> str:
    """Returns how to name the graph of a run that is not read on its word: a command to paste."""
    words = ["graphcl", *again]
    named = [] if options.edges is not None else [origin.graph]
    positional = again[0] == "embed" or not named
    words[3:3] = [*([] if positional else ["--graph"]), *named, *as_arguments(options)]
    command = shlex.join(words)
    # What a terminal would not show, or a paste would change, is not offered for pasting.
    if command.isprintable() and command == " ".join(command.split()) and len(command) < 2000:
        return f"give it yourself: {command}"
    return "name the graph on the command line"


def graph_name(name: str | None, tables: TableOptions, owner: str) -> str:
    """Returns how a run names its graph: as the command line does, or by its first list of edges.

    Raises:
        ParameterError: there is neither.
    """
    if name is None:
        missing = "Missing argument 'GRAPH': a dataset, a store, an .npz or a list of edges"
        if tables.edges is None:
            raise ParameterError(f"{owner}: {missing}")
        return first_list(tables)
    return name


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
