"""Embeds a graph with what a training left; knows nothing of scikit-learn, which takes a second.

After a change of the graph, a layer of a node differs from what it was only near the change
(`graphcl.graphs.changing`). Where the results of the layers below are kept, `embed_layer` computes
each layer on these rows alone, and reads all others. Without them, two hops from a few nodes may be
most of a graph. Rows have the bits that embedding the whole graph gives them.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from graphcl.distributed import apart
from graphcl.embedding import Chosen, embed, embed_graph
from graphcl.encoders import Layer, LayeredEncoder
from graphcl.errors import GraphError
from graphcl.estimator.fitted import Fitted, say_clipped
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import NODE
from graphcl.store.columns import Ids, table_rows
from graphcl.training.progress import RowProgress

LAYERWISE_NODES = 50_000  # above, inference on a GPU goes layer by layer in blocks of rows

Rows = npt.NDArray[np.float32]


def embed_fitted(
    fitted: Fitted,
    graph: Graph,
    nodes: Mapping[str, Chosen] | None = None,
    *,
    device: torch.device,
    scratch: Path | None = None,
    verbose: bool = False,
) -> dict[str, Rows]:
    """Returns the embeddings of all nodes by type, or of some.

    Args:
        fitted: what the training left.
        graph: any graph with the types, relations and features that it was trained on, or fewer.
        nodes: for each type that is wanted, a range or row numbers, as `chosen_nodes` returns them,
            or None for all of its nodes; None means all types.
        device: where to compute.
        scratch: a folder for temporary files; see `embed_graph`.
        verbose: show on stderr how far it is.

    Raises:
        GraphError: the model was trained on other types, relations or features.
    """
    prepared = fitted.prepare(graph)
    encoder = fitted.encoder.to(device)
    names = dict(zip(graph.nodes, prepared.graph.nodes, strict=True))
    wanted: Mapping[str, Chosen] = dict.fromkeys(graph.nodes) if nodes is None else nodes
    every = all(some is None for some in wanted.values())
    if verbose:
        say_clipped(fitted.scaling, prepared.graph)
    # Layer by layer, an embedding does not depend on the size of the graph, bit for bit.
    large = graph.num_nodes > LAYERWISE_NODES
    by_layer = large or device.type == "cpu" or not every or not fitted.schema.is_plain
    if by_layer and isinstance(encoder, LayeredEncoder):
        # Processes of a group share the rows of a large graph; of a small one, each has them all.
        with nullcontext() if large else apart():
            z = embed_graph(
                encoder,
                prepared.graph,
                device=device,
                feature_scaling=fitted.scaling,
                nodes={names[name]: some for name, some in wanted.items()},
                scratch=scratch,
                on_rows=RowProgress() if verbose else lambda *_: None,
            )
    else:
        whole = embed(encoder, *prepared.tensors(device))
        z = {names[name]: whole if some is None else whole[some] for name, some in wanted.items()}
    aligned = fitted.alignment.apply if fitted.alignment is not None else lambda rows: rows
    return {name: aligned(z[names[name]]) for name in wanted}


def embed_chosen(
    fitted: Fitted,
    graph: Graph,
    nodes: Any = None,
    rows: Any = None,
    *,
    node_type: str | None = None,
    **how: Any,
) -> tuple[dict[str, Rows], dict[str, Chosen]]:
    """Returns the embeddings of all types, or of one, or of some of its nodes, and of which.

    Args:
        fitted: what the training left.
        graph: the graph.
        nodes: ids of a type; None is all nodes.
        rows: instead: row numbers, a range or a mask.
        node_type: which type; None is all.
        how: as `embed_fitted` takes it.

    Raises:
        GraphError: nothing says of which type the nodes are, or there are none such.
    """
    plain = fitted.schema.is_plain
    if (nodes is not None or rows is not None) and node_type is None and not plain:
        raise GraphError(f"{graph.name}: of which type are these nodes? Give node_type")
    fitted.schema.check(graph)
    chosen = {
        name: chosen_nodes(graph if plain else graph.type(name), nodes, rows)
        for name in (graph.nodes if node_type is None else [node_type])
    }
    return embed_fitted(fitted, graph, chosen, **how), chosen


def chosen_nodes(graph: Graph | Nodes, nodes: Any, rows: Any = None) -> Chosen:
    """Returns which nodes are meant, by id or by row; see `Ids.chosen`.

    Raises:
        GraphError: an id or a row is unknown, or no node is chosen.
    """
    own: Any = graph.num_nodes if graph.node_ids is None else graph.node_ids
    found = Ids(own).chosen(nodes, rows, graph.name, GraphError)
    if isinstance(found, np.ndarray) and not len(found):
        raise GraphError(f"{graph.name}: no node is chosen; give one or more")
    return found


class _Alone(LayeredEncoder):
    """One layer as an encoder."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self._layer = layer

    def layer_specs(self) -> tuple[Layer, ...]:
        """Returns the layer."""
        return (self._layer,)


def hidden_widths(fitted: Fitted) -> list[int] | None:
    """Returns the width of each layer below the last; None if the encoder does not state them."""
    encoder = fitted.encoder
    if not isinstance(encoder, LayeredEncoder):
        return None
    return [level[NODE].outputs for level in encoder.embedding_levels()[:-1]]


def embed_layer(
    fitted: Fitted,
    graph: Graph,
    number: int,
    below: Any = None,
    nodes: npt.NDArray[np.int64] | None = None,
    *,
    device: torch.device,
    out: Path | None = None,
    scratch: Path | None = None,
) -> Rows:
    """Returns the result of one layer, ``[nodes, width]``.

    Args:
        fitted: what the training left; its encoder states its layers.
        graph: the graph.
        number: which layer, from 0.
        below: the result of the layer before on all nodes of the graph; None for the first layer.
        nodes: rows, ascending; None is all.
        device: where to compute.
        out: an `.npy` file for the result of all nodes.
        scratch: a folder for temporary files.
    """
    encoder = fitted.encoder.to(device)
    assert isinstance(encoder, LayeredEncoder)
    graph, first = fitted.prepare(graph).graph, below is None
    z = embed_graph(
        _Alone(encoder.embedding_levels()[number][NODE]),
        graph if first else graph.replace(x=below),
        device=device,
        feature_scaling=fitted.scaling if first else "none",
        nodes=nodes,
        out=out,
        scratch=scratch,
    )
    return z[NODE]


def join_layers(
    fitted: Fitted,
    graph: Graph,
    below: Sequence[Any],
    last: Rows,
    nodes: npt.NDArray[np.int64] | None = None,
    *,
    device: torch.device,
) -> Rows:
    """Returns embeddings from the results of the layers.

    Args:
        fitted: what the training left; its encoder states its layers.
        graph: the graph.
        below: for each layer but the last, its result on all nodes.
        last: the result of the last layer on `nodes`.
        nodes: rows, ascending; None is all.
        device: where to compute.
    """
    encoder = fitted.encoder
    assert isinstance(encoder, LayeredEncoder)
    beside, z = encoder.beside, last
    if beside is not None:
        rows = np.arange(graph.num_nodes) if nodes is None else nodes
        z = np.empty((len(rows), encoder.width), np.float32)
        if (columns := beside.columns(None)) is not None:
            # Of a node without edges, the mean over its neighbourhood is its own row.
            alone = Graph.from_csr(
                indptr=np.zeros(len(rows) + 1, np.int64),
                indices=np.zeros(0, np.int64),
                x=graph.x if nodes is None else table_rows(graph.x, rows),
            )
            own = _Alone(Layer(beside.projection, activation=None))
            found = embed_graph(own, alone, device=device, feature_scaling=fitted.scaling)[NODE]
            z[:, columns] = beside.finish(torch.from_numpy(found).to(device), columns).cpu()
        for number, table in enumerate([*below, None]):
            if (columns := beside.columns(number)) is not None:
                part = last if table is None else np.array(table[rows], np.float32)
                z[:, columns] = beside.finish(torch.from_numpy(part).to(device), columns).cpu()
    return z if fitted.alignment is None else fitted.alignment.apply(z)
