"""A run whose day moves forward: the tables that it was trained on are read again."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.graphs.changing import Changed
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import Key, Relation
from graphcl.runs.graph import read_tables, run_tables
from graphcl.store.columns import Ids
from graphcl.store.joining import in_order, reordered
from graphcl.tabular.times import moment_of
from graphcl.updating.matching import Grown

IntArray = npt.NDArray[np.int64]


def read_again(run: Path, graph: Graph, until: str) -> Grown:
    """Reads the tables that a run was trained on as of a later day.

    Whatever they say counts: rows that came since, and rows that were changed or taken out.

    Args:
        run: the version that is updated.
        graph: its graph.
        until: the new day.

    Raises:
        RunError: it was not trained on tables.
    """
    name, options = run_tables(run)
    new, report = read_tables(name, replace(options, until=until))
    found = {kind: Ids(own.ids).find(new.nodes[kind].ids) for kind, own in graph.nodes.items()}
    new = _ordered(new, {kind: _places(rows) for kind, rows in found.items()})
    kept = {kind: np.sort(rows[rows >= 0]) for kind, rows in found.items()}
    every = {kind: np.arange(one.num_nodes) for kind, one in new.nodes.items()}
    counts = {
        "new_nodes": new.num_nodes - sum(map(len, kept.values())),
        "removed_nodes": graph.num_nodes - sum(map(len, kept.values())),
        "changed_nodes": sum(_differing(graph, new, kind, rows) for kind, rows in kept.items()),
        "edges_before": graph.num_edges,
        "edges_after": new.num_edges,
    }
    notes = [*report.first, *report.lines]
    return Grown(Changed(new, kept, every, every), counts, notes, until)


def is_earlier(day: str, other: str) -> bool:
    """Returns whether a day is earlier than another.

    Raises:
        GraphError: one is a date, and the other a number.
    """
    dates = "-" in other[1:]
    return moment_of(day, dates=dates) < moment_of(other, dates=dates)


def _places(rows: IntArray) -> IntArray:
    """Returns where nodes stand: known ones first, as they stood, then new ones."""
    last = np.where(rows < 0, np.iinfo(np.int64).max, rows)
    order = np.argsort(last, kind="stable")
    places = np.empty(len(rows), np.int64)
    places[order] = np.arange(len(rows))
    return places


def _ordered(graph: Graph, places: Mapping[str, IntArray]) -> Graph:
    """Returns the graph with row u of a type at ``places[u]``."""
    nodes, relations = {}, dict[Key, Relation]()
    for kind, own in graph.nodes.items():
        held = {one.name: getattr(own, one.name) for one in fields(own)}
        held["node_ids"] = own.ids
        of_rows = [name for name in held if name in ("x", "y", "node_ids") or "_mask" in name]
        moved = {
            name: in_order(held[name], places[kind]) for name in of_rows if held[name] is not None
        }
        nodes[kind] = replace(own, **moved)
    for key, one in graph.relations.items():
        found = reordered(one.indptr, one.indices, places[key[2]], places[key[0]])
        beside: dict[str, Any] = {
            name: None if getattr(one, name) is None else getattr(one, name)[found.entries]
            for name in ("edge_weight", "edge_features", "edge_ids")
        }
        relations[key] = replace(one, indptr=found.indptr, indices=found.indices, **beside)
    return replace(graph, nodes=nodes, relations=relations)


def _differing(graph: Graph, new: Graph, kind: str, kept: IntArray) -> int:
    """Returns how many nodes that stayed have other features."""
    first: Any = graph.nodes[kind].x
    second: Any = new.nodes[kind].x
    if first is None or second is None:
        return 0
    away: Any = first[kept] != second[: len(kept)]
    return int(np.count_nonzero(np.asarray(away.sum(axis=1))))
