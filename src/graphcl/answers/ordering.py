"""Nodes in the order of their ids, so that an answer does not depend on the order of rows.

Draws, sums and ties follow the order of nodes. Whoever sorts the rows of a table otherwise has the
same nodes with the same ids, and gets the same answer.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from graphcl.arrays import Integers
from graphcl.evaluation.folds import ascending
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import Relation


def id_order(ids: Any) -> Integers | None:
    """Returns the rows of nodes in the order of their ids; None if they are in it already."""
    order = ascending(ids)
    return None if np.array_equal(order, np.arange(len(order))) else order


def in_id_order(graph: Graph) -> tuple[Graph, dict[str, Integers]]:
    """Returns a graph whose nodes are in the order of their ids, and the old row of each, by type.

    It is the graph itself if they are in it already.
    """
    found = {name: id_order(nodes.ids[:]) for name, nodes in graph.nodes.items()}
    orders = {
        name: np.arange(graph.nodes[name].num_nodes) if order is None else order
        for name, order in found.items()
    }
    if all(order is None for order in found.values()):
        return graph, orders
    nodes = {name: _sorted_nodes(one, orders[name]) for name, one in graph.nodes.items()}
    relations = {key: _sorted_relation(one, orders) for key, one in graph.relations.items()}
    return replace(graph, nodes=nodes, relations=relations, store=None), orders


def inverse(order: Integers) -> Integers:
    """Returns the new row of each old one."""
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return places


def _sorted_nodes(nodes: Nodes, order: Integers) -> Nodes:
    per_node = ("x", "y", "train_mask", "val_mask", "test_mask", "degree")
    values = {name: getattr(nodes, name) for name in per_node}
    fields: dict[str, Any] = {
        name: value[order] for name, value in values.items() if value is not None
    }
    if nodes.splits is not None:
        fields["splits"] = nodes.splits[:, :, order]
    return replace(nodes, node_ids=np.asarray(nodes.ids[:])[order], cells=None, **fields)


def _sorted_relation(relation: Relation, orders: dict[str, Integers]) -> Relation:
    sources, targets = relation.edge_index()
    sources = inverse(orders[relation.source])[sources]
    targets = inverse(orders[relation.target])[targets]
    entries = np.lexsort((sources, targets))
    counts = np.bincount(targets, minlength=len(relation.indptr) - 1)
    per_entry = ("edge_weight", "edge_features", "edge_ids")
    values = {name: getattr(relation, name) for name in per_entry}
    fields: dict[str, Any] = {
        name: value[entries] for name, value in values.items() if value is not None
    }
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return replace(relation, indptr=indptr, indices=sources[entries], **fields)
