"""Reads tables of several types of nodes, and lists of edges between them, into a typed graph."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import Key
from graphcl.graphs.reverses import without_reverses
from graphcl.tabular.build import stays_sparse
from graphcl.tabular.options import TableOptions, counted, say_isolated
from graphcl.tabular.tables import InMemory, Tables
from graphcl.tabular.typed_edges import EdgeTable, FoundRelation
from graphcl.tabular.typed_tables import TypedReport, TypedTables, open_typed_tables

BLOCK = 1 << 20  # entries that are looked at, written or numbered at a time


def load_typed(edges: Any, options: TableOptions) -> tuple[Graph, TypedReport]:
    """Reads tables into a typed graph, and returns a report on what was found in them.

    Args:
        edges: a list of edges beside those of `options.edges`, or None.
        options: with typed `nodes` or `edges`, or the column `relation`, or `directed`.

    Raises:
        GraphError: tables are wrong; the message lists all that is.
    """
    with open_typed_tables(edges, options) as found:
        fields = {
            kind: _fields(tables, found.options[kind]) for kind, tables in found.nodes.items()
        }
        for kind, one in found.ids.items():
            if one.given:
                fields[kind]["node_ids"] = one.keys.to_numpy(zero_copy_only=False)
        relations = _number(found.lists, options)
    graph = Graph.from_edges(fields, relations, name=found.name)
    graph, said = without_reverses(graph)
    complete_report(found, graph, said)
    return graph, found.report


def _fields(tables: Tables, options: TableOptions) -> dict[str, Any]:
    """Returns the fields of a `Nodes`."""
    report = tables.report
    fields: dict[str, Any] = {"num_nodes": tables.num_nodes}
    if tables.num_features:
        fields["x"] = _features(tables, options)
    fields |= {"y": tables.labels(), **tables.masks()}
    return fields | {"class_names": report.class_names, "preparation": report.preparation}


def _features(tables: Tables, options: TableOptions) -> Any:
    shape = (tables.num_nodes, tables.num_features)
    if not stays_sparse(tables, options):
        x = np.zeros(shape, np.float32)
        tables.fill_features(x)
        return x
    sparse = InMemory()
    tables.fill_sparse_features(sparse)
    parts = tuple(sparse.arrays[name] for name in ("x_data", "x_indices", "x_indptr"))
    return scipy.sparse.csr_array(parts, shape=shape)


def _number(tables: Sequence[EdgeTable], options: TableOptions) -> dict[Key, dict[str, Any]]:
    """Returns the relations as `Graph.from_edges` takes them."""
    relations: dict[Key, dict[str, Any]] = {}
    for table in tables:
        for one in table.relations:
            source, target = one.types
            edges, weights = table.numbered(one)
            about: dict[str, Any] = {"edge_index": edges}
            if weights is not None:
                about["edge_weight"] = weights
            if one.features.width:
                about["edge_features"] = one.features.table(one.rows)
                about["preparation"] = one.features.preparation
            if options.directed:
                about["undirected"] = False
            relations[source, one.name, target] = about
    return relations


def complete_report(found: TypedTables, graph: Graph, reverses: Sequence[str]) -> None:
    """Adds what is known of the whole graph to the report of its tables."""
    for table in found.lists:
        found.report.notes += _edge_notes(table, graph)
    found.report.notes += reverses
    found.say_columns()
    joined = {kind: np.zeros(one.num_nodes, np.bool_) for kind, one in graph.nodes.items()}
    for relation in graph.relations.values():
        joined[relation.target] |= np.diff(relation.indptr) > 0
        for start in range(0, len(relation.indices), BLOCK):  # a store's are on disk
            joined[relation.source][relation.indices[start : start + BLOCK]] = True
    for kind, known in reversed(joined.items()):
        say_isolated(found.report, kind, int((~known).sum()), len(known))


def _edge_notes(table: EdgeTable, graph: Graph) -> list[str]:
    """Returns lines about the relations of a list of edges."""
    head = f"edges {table.name}:" if table.options.relation is None else "edges:"
    notes = [f"{head} {line}" for line in table.notes]
    if table.options.relation is not None:
        listed = ", ".join(one.name for one in table.relations)
        count = counted(len(table.relations), "relation")
        notes.append(f"edges: {table.options.relation!r} names {count}: {listed}")
    for one in table.relations:
        source, target = one.types
        found = graph.relations.get((source, one.name, target))
        if found is None:  # another one read backwards
            continue
        head = f"edges {one.name}:"
        notes.append(
            f"{head} {counted(found.num_edges, 'edge')} {source} → {target} ({_how(table, one)})"
        )
        notes += [f"{head} {line}" for line in one.features.notes]
        if found.self_loops_removed:
            notes.append(f"{head} {counted(found.self_loops_removed, 'self-loop')} left out")
        if found.undirected:
            notes.append(f"{head} each is listed in both directions: undirected")
            continue
        repeated = one.rows - found.self_loops_removed - found.num_edges
        if repeated:
            merged = "merged" if table.weight is None else "weights added"
            notes.append(f"{head} {counted(repeated, 'repeated row')}: {merged}")
    return notes


def _how(table: EdgeTable, one: FoundRelation) -> str:
    if set(one.how) == {"given"}:
        return "given"
    parts = zip(table.columns, one.how, strict=True)
    return "guessed: " + "; ".join(f"{column!r}: {how}" for column, how in parts)
