"""A probe that was trained on one set of embeddings, applied to others of the same nodes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphcl.errors import GraphError
from graphcl.evaluation.probe import best_strength, fit_logistic, scored_split, standardiser
from graphcl.graphs.graph import Graph


def transfer_probe(z: Any, graph: Graph, others: Sequence[Any], seed: int = 0) -> list[float]:
    """Trains the probe on `z` and returns its accuracy on the test rows of `z`, then on `others`.

    The strength is chosen on the validation rows of `z`. Columns are scaled by the mean and
    deviation of `z` everywhere: the probe knows nothing of the other embeddings.

    Args:
        z: embeddings of the graph as it was, ``[num_nodes, dim]``.
        graph: whose labels and split are used.
        others: embeddings of the test nodes in other versions of the graph, in the order of their
            numbers, each ``[test nodes, dim]``.
        seed: of the split, where the graph has none.

    Raises:
        GraphError: no labels, several per node, or embeddings of another shape.
    """
    if graph.y is None or graph.y.ndim != 1:
        raise GraphError(f"probe: {graph.name} has no single class per node")
    train, val, test = scored_split(graph, graph.y, seed)
    z = np.asarray(z)
    fitting = (len(test), z.shape[-1])
    if len(z) != graph.num_nodes or any(np.shape(other) != fitting for other in others):
        raise GraphError(
            f"probe: embeddings do not fit {graph.name} and its {len(test)} test nodes"
        )
    standard, y = standardiser(z), graph.y
    z_train, z_val = standard(z[train]), standard(z[val])
    strength = best_strength(np.concatenate([z_train, z_val]), y[train], y[val])
    probe = fit_logistic(z_train, y[train], strength)
    return [
        float((probe.predict(standard(np.asarray(rows))) == y[test]).mean())
        for rows in (z[test], *others)
    ]
