"""What commands say of a store, whole or in parts."""

from typing import Any

from graphcl.errors import counted
from graphcl.graphs.graph import Graph
from graphcl.store.header import Store


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


def describe(store: Store) -> str:
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
