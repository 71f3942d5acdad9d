"""Generates graphs of any size, by default of Reddit's size and shape.

Classes are communities: an edge stays in its source's class with probability `IN_CLASS`. Degrees
are heavy-tailed: each end is drawn in proportion to a Pareto weight. Features are the centre of the
class plus noise; the centres are so close that features reveal the class only weakly.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphcl.arrays import Array, Floats
from graphcl.errors import require
from graphcl.graphs.graph import Graph

# Reddit as PyG and DGL distribute it, with the paper's split.
NODES, EDGES, FEATURES, CLASSES = 232_965, 57_307_946, 602, 41
SPLIT = (151_708, 23_699, 55_334)
IN_CLASS = 0.7
TAIL = 1.5  # exponent of the Pareto weights; below 2 their variance is infinite
LARGEST = 44.0  # weights are cut at this many means; Reddit's largest degree is 21,657, mean 492
SEPARATION = 3.0  # distance of two centres, in standard deviations of the noise
_CHUNK = 1 << 22


def synthetic_graph(
    num_nodes: int = NODES,
    num_edges: int = EDGES,
    num_features: int = FEATURES,
    num_classes: int = CLASSES,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Graph:
    """Generates a graph. The same arguments give the same graph on every device.

    Args:
        num_nodes: number of nodes, N.
        num_edges: exact number of undirected edges.
        num_features: number of features, P.
        num_classes: number of communities, which have unequal sizes.
        seed: the seed of all draws.
        device: where ends are looked up and edges are sorted; the graph itself is in memory.
    """
    room = num_nodes * (num_nodes - 1) // 4
    owner = "synthetic_graph"
    require(num_nodes >= 2, owner, "num_nodes", "at least 2", num_nodes)
    require(num_features >= 1, owner, "num_features", "at least 1", num_features)
    require(1 <= num_classes <= num_nodes, owner, "num_classes", "in [1, num_nodes]", num_classes)
    dense = f"in [0, {room}], half of all pairs of {num_nodes} nodes"
    require(0 <= num_edges <= room, owner, "num_edges", dense, num_edges)
    random = np.random.default_rng([seed, num_nodes, num_edges, num_features, num_classes])
    y = _classes(random, num_nodes, num_classes)
    edges = np.stack(np.divmod(_edges(random, y, num_edges, torch.device(device)), num_nodes))
    x = _features(random, y, num_features, num_classes)
    train, val, test = _split(random, num_nodes)
    masks: Any = {"train_mask": train, "val_mask": val, "test_mask": test}
    return Graph.from_edge_index(edges, x, y, **masks, name=f"synthetic-{num_nodes}")


def _classes(random: np.random.Generator, num_nodes: int, num_classes: int) -> Array:
    """Draws classes; the size of the k-th class is proportional to 1 / √k."""
    share = 1 / np.sqrt(np.arange(1, num_classes + 1))
    limits = np.round(np.cumsum(share / share.sum()) * num_nodes)
    y = np.searchsorted(limits, np.arange(num_nodes), side="right")
    return random.permutation(np.minimum(y, num_classes - 1).astype(np.int64))


def _edges(random: np.random.Generator, y: Array, num_edges: int, device: torch.device) -> Array:
    """Returns sorted distinct keys u · N + v with u < v, one per edge."""
    num_nodes = len(y)
    weight = np.minimum(random.pareto(TAIL, num_nodes) + 1, LARGEST * TAIL / (TAIL - 1))
    order = np.argsort(y, kind="stable")  # a class is a range of this order
    ends = np.concatenate([[0.0], np.cumsum(weight[order])])
    first = np.searchsorted(y[order], np.arange(y.max() + 2))
    draw = _edge_drawer(ends, ends[first], order, y, device)
    keys = torch.empty(0, dtype=torch.int64, device=device)
    # Self-loops and repeated edges are lost: draw a few more than needed, until there are enough.
    while len(keys) < num_edges:
        missing = num_edges - len(keys)
        wanted = missing + missing // 8 + 64
        drawn = [keys]
        for start in range(0, wanted, _CHUNK):
            uniform = random.random((3, min(_CHUNK, wanted - start)))
            drawn.append(draw(torch.from_numpy(uniform).to(device)))
        keys = torch.cat(drawn)
        # NumPy's sort is vectorised; PyTorch's on a CPU is ten times slower.
        keys = torch.unique(keys) if keys.is_cuda else torch.from_numpy(np.unique(keys.numpy()))
    found = keys.cpu().numpy()
    surplus = random.choice(len(found), len(found) - num_edges, replace=False, shuffle=False)
    return np.delete(found, surplus)


def _edge_drawer(
    ends: Array, class_ends: Array, order: Array, y: Array, device: torch.device
) -> Callable[[Tensor], Tensor]:
    """Returns a function that turns three uniform draws per edge into the edges' keys.

    A draw is a place on the line of cumulative weights, on which a class is an interval: the target
    is drawn from the interval of the source's class, or from the whole line.
    """
    cumulative, limits, nodes, classes = (
        torch.from_numpy(part).to(device) for part in (ends, class_ends, order, y)
    )
    total, num_nodes = float(ends[-1]), len(order)

    def node_at(place: Tensor) -> Tensor:
        found = torch.searchsorted(cumulative, place, right=True) - 1
        return nodes[found.clamp_(0, num_nodes - 1)]

    def draw(uniform: Tensor) -> Tensor:
        source = node_at(uniform[0] * total)
        low, high = limits[classes[source]], limits[classes[source] + 1]
        inside = low + uniform[2] * (high - low)
        target = node_at(torch.where(uniform[1] < IN_CLASS, inside, uniform[2] * total))
        low_end, high_end = torch.minimum(source, target), torch.maximum(source, target)
        keys = low_end * num_nodes + high_end
        return keys[source != target]

    return draw


def _features(random: np.random.Generator, y: Array, num_features: int, num_classes: int) -> Floats:
    spread = SEPARATION / np.sqrt(2 * num_features)
    centres = random.standard_normal((num_classes, num_features), dtype=np.float32) * spread
    x = random.standard_normal((len(y), num_features), dtype=np.float32)
    for start in range(0, len(y), 65536):
        rows = slice(start, start + 65536)
        x[rows] += centres[y[rows]].astype(np.float32)
    return x


def _split(random: np.random.Generator, num_nodes: int) -> list[Array]:
    order, masks, start = random.permutation(num_nodes), [], 0
    for count in SPLIT:
        stop = start + count * num_nodes // NODES
        mask = np.zeros(num_nodes, dtype=np.bool_)
        mask[order[start:stop]] = True
        masks.append(mask)
        start = stop
    return masks
