"""From tables that name nodes by id to the grown graph, where a graph has types.

The tables are read as those of the training were, by the preparations of its types and relations.
The graph is built anew and embedded whole: what a plain graph saves by looking at what changed is
not saved here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError, counted
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.rebuilding import TypedDelta, rebuild
from graphcl.graphs.relation import Key, Relation
from graphcl.store.reader import MASKS
from graphcl.tabular.build import typed_graph
from graphcl.tabular.new_rows import as_they_are, present, read_ids
from graphcl.tabular.options import TableOptions, by_name
from graphcl.tabular.tables import open_tables
from graphcl.updating.ids import NodeIds

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]
Tables = Mapping[str, Any]  # by type, or by relation


@dataclass(frozen=True, eq=False)
class TypedGrown:
    """A graph with types that has changed, and how.

    Attributes:
        graph: the new graph.
        kept: the old rows that stay, by type.
        counts: how many nodes and edges are new, removed, changed.
        notes: lines for the user about the tables.
    """

    graph: Graph
    kept: dict[str, IntArray]
    counts: dict[str, int]
    notes: list[str]


def grow_typed(
    graph: Graph,
    options: TableOptions,
    *,
    nodes: Tables | None = None,
    edges: Tables | None = None,
    remove_nodes: Tables | None = None,
    remove_edges: Tables | None = None,
) -> TypedGrown:
    """Returns the graph with what tables add to it, change in it and remove from it.

    Args:
        graph: the old graph.
        options: how tables are read, with the preparations of the training.
        nodes: tables of new and changed nodes by type; they have all columns of the training.
        edges: lists of new edges by relation.
        remove_nodes: lists of nodes to remove by type.
        remove_edges: lists of edges to remove by relation.

    Raises:
        GraphError: a table is wrong, or does not fit the graph.
    """
    ids = {name: NodeIds(one) for name, one in graph.nodes.items()}
    notes: list[str] = []
    removed: dict[str, IntArray] = {}
    for name, table in (remove_nodes or {}).items():
        listed, said = read_ids(table, replace(options, nodes=None, edges=None))
        own = ids[graph.type(name).name]
        removed[name] = own.require(own.alike(listed), f"remove-nodes {name}")
        notes += said
    dropped = _dropped(graph, options, ids, remove_edges or {})
    new: dict[str, dict[str, Any]] = {}
    changed: dict[str, tuple[IntArray, dict[str, Any]]] = {}
    added: dict[Key, dict[str, Any]] = {}
    if nodes or edges:
        delta, stated, said = _read(graph, options, nodes or {}, edges or {})
        notes += said
        rows = {}
        for name, one in delta.nodes.items():
            count = stated[name] if name in (nodes or {}) else 0
            rows[name] = _matched(graph.nodes[name], one, ids[name], count, new, changed)
        for key, relation in delta.relations.items():
            if len(relation.indices):
                added[key] = _new_edges(graph.relations[key], relation, rows)
    grown = rebuild(
        graph, TypedDelta(nodes=new, changed=changed, removed=removed, edges=added, dropped=dropped)
    )
    kept = {
        name: np.setdiff1d(np.arange(one.num_nodes), removed.get(name, []))
        for name, one in graph.nodes.items()
    }
    counts = {
        "new_nodes": sum(int(one["num_nodes"]) for one in new.values()),
        "removed_nodes": sum(map(len, removed.values())),
        "changed_nodes": sum(len(one) for one, _ in changed.values()),
        "edges_before": graph.num_edges,
        "edges_after": grown.num_edges,
    }
    return TypedGrown(grown, kept, counts, notes)


def _read(
    graph: Graph, options: TableOptions, nodes: Tables, edges: Tables
) -> tuple[Graph, dict[str, int], list[str]]:
    """Reads tables as a graph of their own, in which edges may name nodes that tables lack.

    A type without a table has one of the ids that the graph has: edges name them alone.

    Returns:
        The graph; how many nodes of each type are rows of a table; and lines for the user.
    """
    lists = {}
    for name, table in edges.items():
        relation = graph.relation(name)
        lists[":".join(relation.key)] = table
    joined = {end for text in lists for end in text.split(":")[::2]}
    tables: dict[str, Any] = {graph.type(name).name: table for name, table in nodes.items()}
    known = {name: one for name, one in (options.preparations or {}).items() if name in set(tables)}
    columns = dict(by_name("id_column", options.id_column, graph.nodes))
    for name in joined - set(tables):
        own = graph.nodes[name]
        listed = np.arange(own.num_nodes) if own.node_ids is None else own.node_ids[:]
        tables[name] = {columns.get(name, columns.get("", "id")): listed}
    of_nodes: dict[str, Any] = {}  # labels and splits of types that have a table here
    for option, none in (("label", ()), ("split", None)):
        asked = by_name(option, getattr(options, option), graph.nodes)
        kept: dict[str, Any] = {}
        for kind, value in asked:
            own_type = kind or graph.labelled_type
            names = [value] if isinstance(value, str) else list(value)
            there = present(tables[own_type], options, names) if own_type in nodes else ()
            if there:  # without the column, new nodes have no label and others keep theirs
                kept[own_type] = value
        of_nodes[option] = kept or none
    if not lists:  # tables of nodes alone: a graph has relations, so one without edges
        first = next(iter(tables))
        lists[f"{first}:nothing:{first}"] = {
            "source": np.array([], np.str_),
            "target": np.array([], np.str_),
        }
    exact = []  # types that were not read from tables: nothing says what fills a hole
    for name in nodes:
        own = graph.nodes[name]
        if name not in known and own.x is not None:
            used = [*_columns(of_nodes["label"], name), *_columns(of_nodes["split"], name)]
            column = columns.get(name, columns.get(""))
            alone = replace(options, id_column=column)
            known[name] = as_they_are(tables[name], alone, own.num_features, used=used)
            exact.append(name)
    of_edges = dict(options.edge_preparations or {})
    for text, table in lists.items():
        own_edges = {":".join(key): one for key, one in graph.relations.items()}.get(text)
        if own_edges is not None and own_edges.num_edge_features and text not in of_edges:
            width, weight = own_edges.num_edge_features, options.weight
            used = [weight] if isinstance(weight, str) else []
            of_edges[text] = as_they_are(table, options, width, used=used, edges=True)
    read = replace(
        options,
        nodes=tables,
        edges=lists,
        unknown_edges="add",
        preparations=known,
        edge_preparations=of_edges,
        directed=False,
        **of_nodes,
    )
    with open_tables(None, read) as opened:
        found, report = typed_graph(opened, read), opened.report
        # Nodes that edges add come after the rows of a table.
        stated = {
            name: one.num_nodes - one.report.added_nodes for name, one in opened.nodes.items()
        }
        for name in exact:
            if count := opened.nodes[name].report.filled_values:
                missing = counted(count, "value is", "values are")
                raise GraphError(f"nodes {name}: {missing} missing; every feature needs one")
    usual = ("that only edges name", "no edge", ":nothing:", "edges nothing")
    said = [*report.first, *report.notes]
    return found, stated, [line for line in said if not any(one in line for one in usual)]


def _columns(given: Any, name: str) -> list[str]:
    """Returns the columns that an option names for a type, or for all."""
    found = [] if not given else [value for kind, value in given.items() if kind in ("", name)]
    return [one for value in found for one in ([value] if isinstance(value, str) else value)]


def _matched(
    own: Nodes,
    delta: Nodes,
    ids: NodeIds,
    count: int,
    new: dict[str, dict[str, Any]],
    changed: dict[str, tuple[IntArray, dict[str, Any]]],
) -> IntArray:
    """Returns the row of each node of the tables in the grown graph; notes new and changed ones.

    The first `count` are rows of a table. Others, which only edges name, have no features: they
    must be nodes of the graph.
    """
    listed = np.arange(delta.num_nodes) if delta.node_ids is None else delta.node_ids[:]
    rows = ids.find(ids.alike(listed))
    stated = np.arange(delta.num_nodes) < count
    unknown = (rows < 0) & ~stated
    if unknown.any():
        ids.refuse_unknown(np.asarray(listed)[unknown], f"edges: nodes of type {own.name}")
    if not count:
        return rows
    if own.x is not None and delta.num_features != own.num_features:
        raise GraphError(
            f"nodes {own.name}: {delta.num_features} features; the graph has {own.num_features}"
        )
    fields = _fields(own, delta)
    fresh, again = np.flatnonzero((rows < 0) & stated), np.flatnonzero((rows >= 0) & stated)
    if len(fresh):
        new[own.name] = {"num_nodes": len(fresh)}
        new[own.name] |= {name: values[fresh] for name, values in fields.items()}
        new[own.name]["node_ids"] = ids.alike(np.asarray(listed))[fresh]
        rows[fresh] = own.num_nodes + np.arange(len(fresh))
    if len(again):
        there = {name: values[again] for name, values in fields.items()}
        changed[own.name] = (rows[again], there)
    return rows


def _fields(own: Nodes, delta: Nodes) -> dict[str, Any]:
    """Returns features, labels and masks of the tables that the graph has, too."""
    found: dict[str, Any] = {}
    if own.x is not None and delta.x is not None:
        found["x"] = delta.x
    if own.y is not None and delta.y is not None:
        if own.y.ndim != delta.y.ndim or own.y.ndim == 2:
            raise GraphError(f"nodes {own.name}: several labels cannot be changed by an update")
        place = {name: number for number, name in enumerate(own.class_names)}
        unknown = [name for name in delta.class_names if name not in place]
        if unknown:
            raise GraphError(f"nodes {own.name}: no class {unknown[0]!r} in the graph")
        table = np.array([*(place[name] for name in delta.class_names), -1], np.int64)
        found["y"] = table[delta.y] if delta.class_names else delta.y
    for mask in MASKS:
        if getattr(own, mask) is not None and getattr(delta, mask) is not None:
            found[mask] = getattr(delta, mask)
    return found


def _new_edges(own: Relation, delta: Relation, rows: Mapping[str, IntArray]) -> dict[str, Any]:
    """Returns the edges of a relation that tables list, each once, in rows of the grown graph."""
    ends, once = delta.edge_index(), np.arange(len(delta.indices))
    if delta.undirected:
        once = np.flatnonzero(ends[0] < ends[1])
    found: dict[str, Any] = {
        "edge_index": np.stack([rows[own.source][ends[0, once]], rows[own.target][ends[1, once]]])
    }
    for name in ("edge_weight", "edge_features"):
        values = getattr(delta, name)
        if values is not None:
            found[name] = values[once]
    return found


def _dropped(
    graph: Graph, options: TableOptions, ids: Mapping[str, NodeIds], tables: Tables
) -> dict[Key, IntArray]:
    """Returns the ends of edges to remove, by relation."""
    found: dict[Key, IntArray] = {}
    for name, table in tables.items():
        own = graph.relation(name)
        bare_graph = replace(graph, relations={own.key: replace(own, edge_features=None)})
        plain = replace(options, weight=None, edge_preparations={})
        delta = _read(bare_graph, plain, {}, {name: table})[0]
        listed = delta.relations[own.key]
        rows = {}
        for end in {own.source, own.target}:
            named: Any = delta.nodes[end].node_ids
            given = np.arange(delta.nodes[end].num_nodes) if named is None else named[:]
            rows[end] = ids[end].find(ids[end].alike(given))
        bare = replace(listed, edge_weight=None, edge_features=None)
        ends = _new_edges(own, bare, rows)["edge_index"]
        if (ends < 0).any():
            raise GraphError(f"remove-edges {name}: an end is not a node of the graph")
        found[own.key] = ends
    return found
