"""Typed graphs that are generated: of any size, or such that one thing alone tells the class."""

from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import require
from graphcl.graphs.graph import Graph

ONLY = ("relation", "edge features", "direction")
_DEGREE = 8  # edges of a member, in each relation or direction
_FEATURES = 16
_SHARES = (0.4, 0.2)  # training and validation members; the others are for the test

Random = np.random.Generator


def telling_graph(only: str, num_nodes: int = 600, *, seed: int = 0) -> Graph:
    """Generates a typed graph in which only one thing tells the class of a node.

    Args:
        only: one of `ONLY`.
        num_nodes: half of them are members, who have the classes, and half are things.
        seed: the seed of all draws.
    """
    require(only in ONLY, "telling_graph", "only", ", ".join(map(repr, ONLY)), only)
    require(num_nodes >= 40, "telling_graph", "num_nodes", "at least 40", num_nodes)
    random = np.random.default_rng([seed, ONLY.index(only), num_nodes])
    half = num_nodes // 2
    y, kinds = random.integers(0, 2, half), random.permutation(np.arange(half) % 2)
    noise = random.normal(size=(half, _FEATURES))
    things = random.normal(size=(half, _FEATURES))
    things[:, :4] += 2 * (2 * kinds[:, None] - 1)
    name = f"only {only} tells"
    members: dict[str, Any] = {"x": noise, "y": y, **_member_split(random, half)}
    if only == "relation":
        likes, dislikes = _towards(random, y, kinds), _towards(random, 1 - y, kinds)
        return Graph.from_edges(
            {"user": members, "item": things},
            {("user", "likes", "item"): likes, ("user", "dislikes", "item"): dislikes},
            name=name,
        )
    if only == "edge features":
        sources = np.repeat(np.arange(half), _DEGREE)
        edges = np.stack([sources, random.integers(0, half, len(sources))])
        vectors = random.normal(size=(len(sources), 3))
        vectors[:, 0] += 2 * y[sources] - 1
        rates = {"edge_index": edges, "edge_features": vectors}
        return Graph.from_edges(
            {"user": members, "item": things}, {("user", "rates", "item"): rates}, name=name
        )
    follows, followed = _towards(random, y, kinds), _towards(random, 1 - y, kinds)
    after = np.array([[0], [half]])  # things are numbered after the members
    ends = np.concatenate([follows + after, (followed + after)[::-1]], axis=1)
    labels = np.concatenate([y, np.full(half, -1)])
    masks: dict[str, Any] = {
        key: np.concatenate([mask, np.zeros(half, bool)]) for key, mask in _masks(members)
    }
    return Graph.from_directed(
        ends, np.concatenate([noise, things]), labels, name=name, relation="follows", **masks
    )


def typed_graph_of_size(
    num_nodes: int = 1_000_000,
    num_edges: int = 10_000_000,
    num_features: int = 64,
    *,
    seed: int = 0,
) -> Graph:
    """Generates a graph of four types and six relations, for measuring time and memory.

    Ends are drawn at random; the types have 50, 30, 15 and 5 of 100 nodes.
    """
    require(num_nodes >= 100, "typed_graph_of_size", "num_nodes", "at least 100", num_nodes)
    random = np.random.default_rng([seed, num_nodes, num_edges, num_features])
    shares = {"customer": 0.5, "product": 0.3, "review": 0.15, "seller": 0.05}
    sizes = {name: int(num_nodes * share) for name, share in shares.items()}
    sizes["customer"] += num_nodes - sum(sizes.values())
    relations = {
        ("customer", "buys", "product"): 0.35,
        ("customer", "views", "product"): 0.25,
        ("customer", "writes", "review"): 0.1,
        ("review", "about", "product"): 0.1,
        ("seller", "sells", "product"): 0.1,
        ("customer", "knows", "customer"): 0.1,
    }
    nodes = {
        name: random.standard_normal((size, num_features), dtype=np.float32)
        for name, size in sizes.items()
    }
    edges = {}
    for key, share in relations.items():
        count = int(num_edges * share)
        ends = [random.integers(0, sizes[end], count) for end in (key[0], key[2])]
        edges[key] = {"edge_index": np.stack(ends)}
    edges["customer", "knows", "customer"]["undirected"] = True  # type: ignore[assignment]
    return Graph.from_edges(nodes, edges, name=f"typed-{num_nodes}")


def _towards(
    random: Random, wanted: npt.NDArray[Any], kinds: npt.NDArray[Any]
) -> npt.NDArray[np.int64]:
    """Returns edges of every member to things of the kind that it wants."""
    sources = np.repeat(np.arange(len(wanted)), _DEGREE)
    targets = np.empty(len(sources), np.int64)
    for kind in (0, 1):
        chosen = wanted[sources] == kind
        targets[chosen] = random.choice(np.flatnonzero(kinds == kind), int(chosen.sum()))
    return np.stack([sources, targets])


def _member_split(random: Random, count: int) -> dict[str, npt.NDArray[np.bool_]]:
    place = random.permutation(count) / count
    train, val = place < _SHARES[0], (place >= _SHARES[0]) & (place < sum(_SHARES))
    return {"train_mask": train, "val_mask": val, "test_mask": ~(train | val)}


def _masks(members: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in members.items() if key.endswith("_mask")]
