"""What a run keeps of its graph's nodes, for reports and neighbour lists later."""

from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph, split_gap
from graphcl.runs.nodes import RunNodes


def describe_nodes(graph: Graph | GraphCollection) -> RunNodes:
    """Returns what a run keeps of the nodes of a graph, or of several one below the other."""
    graphs = graph.graphs if isinstance(graph, GraphCollection) else (graph,)
    degree = np.concatenate([np.diff(one.indptr) for one in graphs])
    ids = np.arange(graph.num_nodes) if graph.node_ids is None else graph.node_ids[:]
    y = graph.y if graph.y is not None and graph.y.ndim == 1 else None
    split: npt.NDArray[Any] | None = None
    if isinstance(graph, GraphCollection):
        split = np.repeat(np.arange(1, 4), graph.split_nodes)
    elif graph.has_split or split_gap(graph):  # half a split is no reason to draw another
        split = np.zeros(graph.num_nodes, np.uint8)
        for code, mask in enumerate((graph.train_mask, graph.val_mask, graph.test_mask), 1):
            if mask is not None:
                split[np.asarray(mask)] = code
    return RunNodes(ids, degree, y, split)
