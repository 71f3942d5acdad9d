"""After a training: the parts of its embeddings are brought to one size."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from graphcl.distributed import current_share
from graphcl.embedding import embed, embed_graph, embed_typed
from graphcl.encoders import LayeredEncoder
from graphcl.estimator.parts import Parts
from graphcl.graphs.collection import training_subgraph
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import NODE
from graphcl.graphs.scaling import Scaling
from graphcl.graphs.tensors import graph_tensors
from graphcl.graphs.typed_tensors import Prepared
from graphcl.seeding import derive

WHOLE = 50_000  # nodes of a graph that is embedded at once
RANGES, NODES = 16, 128  # of a larger one: drawn ranges of nodes, and nodes in each
ENOUGH = 4096  # nodes, over several graphs, or of each type


Sample = Mapping[str, Tensor]  # embeddings of some nodes of each type


def calibrate(encoder: nn.Module, sample: Callable[[], Sample]) -> None:
    """Sets the sizes of what stands side by side in embeddings, from nodes of the training.

    They are embedded exactly, as `transform` does, which `sample` does. An encoder whose embedding
    is the result of its last layer is left alone.
    """
    if not isinstance(encoder, LayeredEncoder) or encoder.part(NODE) is None:
        return
    for name, rows in sample().items():
        beside = encoder.part(name)
        assert beside is not None
        beside.calibrate(rows)


def sample_graphs(
    parts: Parts,
    encoder: nn.Module,
    graphs: Sequence[Graph],
    *,
    device: torch.device,
    scaling: Scaling,
    seed: int,
) -> Sample:
    """Returns embeddings of nodes that were trained on."""
    found: list[Tensor] = []
    assert isinstance(encoder, LayeredEncoder)
    for graph in graphs:
        seen = training_subgraph(graph) if parts.recipe.inductive else graph
        found.append(torch.from_numpy(_some_rows(encoder, seen, device, scaling, seed)))
        if sum(map(len, found)) >= ENOUGH:
            break
    return {NODE: torch.cat(found)}


def sample_types(
    encoder: LayeredEncoder, prepared: Prepared, *, device: torch.device, seed: int
) -> Sample:
    """Returns embeddings of some nodes of each type."""
    sizes = {name: one.num_nodes for name, one in prepared.graph.nodes.items()}
    nodes: Mapping[str, Any] = drawn_nodes(sizes, seed)
    options: Any = {"device": device, "scaling": prepared.scaling}
    z = embed_typed(encoder, prepared.graph, nodes=nodes, **options)
    return {name: torch.from_numpy(rows) for name, rows in z.items()}


def _some_rows(
    encoder: LayeredEncoder, graph: Graph, device: torch.device, scaling: Scaling, seed: int
) -> npt.NDArray[np.float32]:
    """Returns the embeddings of all nodes of a small graph, or of some of a large one."""
    options: Any = {"device": device, "feature_scaling": scaling}
    if graph.num_nodes <= WHOLE and current_share().world == 1:
        return embed(encoder, *graph_tensors(graph, **options))
    if graph.num_nodes <= WHOLE:
        return embed_graph(encoder, graph, **options)  # each process computes its rows
    starts = drawn_ranges(graph.num_nodes, seed)
    return np.concatenate(
        [embed_graph(encoder, graph, nodes=slice(i, i + NODES), **options) for i in starts]
    )


def drawn_ranges(num_nodes: int, seed: int) -> list[int]:
    """Returns where the ranges of `NODES` nodes begin that stand for a large graph, ascending."""
    random = np.random.default_rng(derive(seed, "calibration"))
    starts = np.sort(random.choice(num_nodes // NODES, RANGES, replace=False)) * NODES
    return [int(start) for start in starts]


def drawn_nodes(sizes: Mapping[str, int], seed: int) -> dict[str, npt.NDArray[np.int64]]:
    """Returns some nodes of each type, ascending."""
    random = np.random.default_rng(derive(seed, "calibration"))
    return {
        name: np.sort(random.choice(size, min(size, ENOUGH), replace=False))
        for name, size in sizes.items()
    }
