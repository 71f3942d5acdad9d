"""Embeds a graph with what a training left, and nodes that a graph does not have yet.

Nothing here knows scikit-learn, which takes a second to import.

After a change of the graph, a layer of a node differs from what it was only near the change
(`graphcl.graphs.changing`). Where the results of the layers below are kept, `embed_layer` computes
each layer on these rows alone, and reads all others. Without them, two hops from a few nodes may be
most of a graph. Rows have the bits that embedding the whole graph gives them.

`Live` embeds new nodes in milliseconds, without rebuilding the graph: `grown_part` finds the few
hundred nodes that matter. Of these, each layer is computed where it is needed, by the loops of
`graphcl.embedding`. That is so little work that a second core only costs time, so one is used.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphcl.arrays import Floats, Integers
from graphcl.distributed import apart
from graphcl.embedding import Chosen, embed, embed_graph
from graphcl.encoders import Layer, LayeredEncoder, layered
from graphcl.errors import GraphError, demand
from graphcl.estimator.fitted import Fitted, say_clipped
from graphcl.graphs.changing import Delta, EdgeDelta, NodeDelta, change_graph
from graphcl.graphs.filling import filling_depth
from graphcl.graphs.graph import Graph
from graphcl.graphs.neighbourhood import GrownPart, Surroundings, grown_part, new_nodes
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import NODE, Key
from graphcl.graphs.tensors import stored_features
from graphcl.kernels.buffers import borrow
from graphcl.kernels.features import padded_product, stable_product
from graphcl.kernels.stored_features import StoredFeatures, mean_of_neighbourhoods
from graphcl.store.columns import Ids, table_rows
from graphcl.tabular.times import has_age_alone
from graphcl.training.progress import RowProgress

LAYERWISE_NODES = 50_000  # above, inference on a GPU goes layer by layer in blocks of rows
MOST_ROWS = 4096  # of a layer of new nodes; with more, several cores are faster


def embed_fitted(
    fitted: Fitted,
    graph: Graph,
    nodes: Mapping[str, Chosen] | None = None,
    *,
    device: torch.device,
    scratch: Path | None = None,
    verbose: bool = False,
) -> dict[str, Floats]:
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
) -> tuple[dict[str, Floats], dict[str, Chosen]]:
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
    demand(
        plain or node_type is not None or (nodes is None and rows is None),
        f"{graph.name}: of which type are these nodes? Give node_type",
    )
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
    demand(
        not isinstance(found, np.ndarray) or len(found),
        f"{graph.name}: no node is chosen; give one or more",
    )
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
    nodes: Integers | None = None,
    *,
    device: torch.device,
    out: Path | None = None,
    scratch: Path | None = None,
) -> Floats:
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
    encoder = layered(fitted.encoder).to(device)
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
    last: Floats,
    nodes: Integers | None = None,
    *,
    device: torch.device,
) -> Floats:
    """Returns embeddings from the results of the layers.

    Args:
        fitted: what the training left; its encoder states its layers.
        graph: the graph.
        below: for each layer but the last, its result on all nodes.
        last: the result of the last layer on `nodes`.
        nodes: rows, ascending; None is all.
        device: where to compute.
    """
    encoder = layered(fitted.encoder)
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


class NoSuchNodeError(GraphError):
    """No node of the graph has an id that was asked for."""


class Live:
    """A model beside a graph, ready to embed new nodes; build it with `GraphCL.live`.

    It holds what does not depend on the new nodes: where ids are (16 bytes per node, made when a
    text is first asked for), how features are scaled, the weights. It can be used by several
    threads. A later `fit` of the model does not change it.

    Of a graph with types, the new nodes are of one type.
    """

    def __init__(
        self, fitted: Fitted, graph: Graph, device: torch.device, node_type: str | None = None
    ) -> None:
        self._ids: dict[str, Ids] = {}
        self._fitted, self._device = fitted, device
        fitted.schema.check(graph)
        if node_type is None and len(graph.nodes) > 1:
            named = ", ".join(graph.nodes)
            raise GraphError(f"{graph.name}: of which type are new nodes? One of {named}")
        node_type = graph.type(node_type or next(iter(graph.nodes))).name
        self._around = Surroundings(graph)
        self._weighted = fitted.schema.is_plain and graph.edge_weight is not None
        # As in `embed_graph`: if every weight is 1, edges have none.
        if self._weighted and bool((graph.edge_weight == 1).all()):
            graph = graph.replace(edge_weight=None)
        self.graph, self.nodes = graph, graph.nodes[node_type]
        encoder: Any = fitted.encoder.to(device).eval()
        plain = fitted.schema.is_plain and isinstance(encoder, LayeredEncoder)
        self._layers = [level[NODE] for level in encoder.embedding_levels()] if plain else []

    def rows_of(
        self, nodes: Any = None, node_type: str | None = None, *, rows: Any = None
    ) -> Integers:
        """Returns the rows of nodes of the graph by id; or `rows` themselves, checked.

        `node_type` says of which type they are; None is that of the new nodes.

        Raises:
            GraphError: no node has an id, or a number is out of range.
        """
        own = self.graph.nodes[node_type or self.nodes.name]
        if own.name not in self._ids:
            listed: Any = own.num_nodes if own.node_ids is None else own.node_ids
            self._ids[own.name] = Ids(listed, kept=True)
        owner = self.graph.name if self._fitted.schema.is_plain else own.name
        found = self._ids[own.name].chosen(nodes, rows, owner, NoSuchNodeError)
        if not isinstance(found, np.ndarray):
            raise GraphError(f"{owner}: neighbours are a list of ids; rows, of row numbers")
        return found

    def neighbours_of(self, texts: Sequence[Any]) -> dict[tuple[Key, bool], list[Any]]:
        """Returns the other ends of a new node's edges, by relation and whether it is the target.

        Args:
            texts: ``RELATION/ID``; or an id alone, if the type is in one relation, which may have a
                slash in it. ``<RELATION/ID`` is an edge towards the new node, of a directed
                relation within its type.

        Raises:
            GraphError: there is no such relation, or it is not clear which is meant.
        """
        own = {key: one for key, one in self.graph.relations.items() if self.nodes.name in key[::2]}
        known = {text for key in self.graph.relations for text in (key[1], ":".join(key))}
        found: dict[tuple[Key, bool], list[Any]] = {}
        for text in texts:
            said, slash, name = str(text).partition("/")
            towards, relation = said.startswith("<"), said.removeprefix("<")
            if not slash or (len(own) == 1 and relation not in known):
                if len(own) != 1:
                    named = ", ".join(f"{key[1]}/{text}" for key in own) or "none"
                    raise GraphError(f"embed_new: by which relation is {text!r} linked? {named}")
                relation, name, towards = next(iter(own))[1], str(text), False
            key = self.graph.relation(relation).key
            demand(key in own, f"embed_new: {relation} does not join {self.nodes.name} nodes")
            demand(
                own[key].edge_features is None or has_age_alone(own[key]),
                f"embed_new: edges of {relation} have features; such a node joins by update",
            )
            towards = towards if key[0] == key[2] else key[2] == self.nodes.name
            found.setdefault((key, towards), []).append(name)
        return found

    def _embed_typed(
        self, features: Any, neighbours: list[Any], edges: Any, weights: list[Any] | None
    ) -> Floats:
        """Returns the embeddings of new nodes of a type, in the grown part of the graph."""
        demand(
            edges is None or not len(edges),
            "embed_new: new nodes of a graph with types have no edges among them",
        )
        features = np.atleast_2d(np.asarray(features, np.float32))
        own, count = self.nodes, len(features)
        width = own.num_features
        demand(
            features.ndim == 2 and features.shape[1] == width,
            f"embed_new: features must be [n, {width}]; got {features.shape}",
        )
        near: dict[str, list[int]] = {own.name: []}
        ends: dict[Key, dict[tuple[int, int, bool], float]] = {}
        for place, texts in enumerate(neighbours):
            of = [1.0] * len(texts) if weights is None else list(weights[place])
            demand(
                len(of) == len(texts),
                "embed_new: weights must be as many as neighbours, of each node",
            )
            for text, weight in zip(texts, of, strict=True):
                ((key, towards), names) = next(iter(self.neighbours_of([text]).items()))
                other = key[0] if towards else key[2]
                row = int(self.rows_of(np.array(names, object), other)[0])
                near.setdefault(other, []).append(row)
                listed, edge = ends.setdefault(key, {}), (place, row, towards)
                listed[edge] = listed.get(edge, 0) + weight
        hops = len(layered(self._fitted.encoder).levels()) - 1 + filling_depth(self._fitted.schema)
        wanted = {name: np.unique(rows).astype(np.int64) for name, rows in near.items()}
        if not len(wanted[own.name]):  # one of the type has to be there, for new ones to join
            wanted[own.name] = np.zeros(1, np.int64)
        part, rows = self._around.within(wanted, hops)
        first = part.nodes[own.name].num_nodes
        joined = {}
        for key, listed in ends.items():
            pairs = np.empty((len(listed), 2), np.int64)
            for at, (place, row, towards) in enumerate(listed):
                there = int(np.searchsorted(rows[key[0] if towards else key[2]], row))
                pairs[at] = (there, first + place) if towards else (first + place, there)
            weighted = self.graph.relations[key].edge_weight is not None
            demand(
                weights is None or weighted,
                f"embed_new: edges of {key[1]} have no weights; leave them out",
            )
            given = np.array([*listed.values()], np.float32) if weighted else None
            new_edges = np.zeros((len(pairs), 1), np.float32)  # of no age
            aged = self.graph.relations[key].edge_features is not None
            joined[key] = EdgeDelta(pairs, given, new_edges if aged else None)
        new = NodeDelta(count, None if own.x is None else features)
        grown = change_graph(part, Delta({own.name: new}, joined)).graph
        new_rows = {own.name: np.arange(first, first + count)}
        return embed_fitted(self._fitted, grown, new_rows, device=self._device)[own.name]

    def embed_new(
        self,
        features: Any,
        neighbours: Any = None,
        *,
        rows: Any = None,
        edges: Any = None,
        weights: Any = None,
    ) -> Floats:
        """Returns the embeddings of new nodes, as `GraphCL.embed_new` describes."""
        demand(
            (neighbours is None) != (rows is None),
            "embed_new: give neighbours, which are ids, or rows, their numbers",
        )
        single, plain = np.ndim(features) == 1, self._fitted.schema.is_plain
        given = None if weights is None else _lists(weights, single=single, what="weights")
        demand(
            rows is None or plain, "embed_new: in a graph with types, neighbours are RELATION/ID"
        )
        lists = _lists(neighbours if rows is None else rows, single=single, what="neighbours")
        if plain:
            by = "nodes" if rows is None else "rows"
            lists = [self.rows_of(**{by: some}) for some in lists]
        embed = self._embed_plain if plain else self._embed_typed
        z = embed(features, lists, edges, given)
        return z[0] if single else z

    def _embed_plain(
        self, features: Any, near: list[Integers], edges: Any, given: list[Any] | None
    ) -> Floats:
        """Returns the embeddings of new nodes of a plain graph; `near` has their neighbours."""
        new = new_nodes(self.graph, features, near, edges=edges, weights=given)
        demand(
            new.weight is None or self._weighted,
            f"embed_new: edges of {self.graph.name} have no weights; leave them out",
        )
        if not self._layers:  # how far such an encoder looks is not known
            return self._embed_last(grown_part(self.graph, new, None).graph, len(new))
        part = grown_part(self.graph, new, len(self._layers))
        few = max(map(len, part.levels)) <= MOST_ROWS
        plain = isinstance(part.graph.x, np.ndarray) and part.graph.edge_weight is None
        if not (few and plain and self._device.type == "cpu"):
            return self._embed_last(part.graph, len(new))
        encoder, alignment = layered(self._fitted.encoder), self._fitted.alignment
        x = stored_features(part.graph.x, feature_scaling=self._fitted.scaling.nodes[NODE])
        with torch.no_grad(), _one_thread():
            z: Floats = _encode(encoder, self._layers, x, part).numpy()
        return z if alignment is None else alignment.apply(z)

    def _embed_last(self, graph: Graph, number: int) -> Floats:
        """The plain way: the same embeddings by the loops that serve any graph."""
        last = {NODE: np.arange(graph.num_nodes - number, graph.num_nodes)}
        return embed_fitted(self._fitted, graph, last, device=self._device)[NODE]


def _lists(given: Any, *, single: bool, what: str) -> list[Any]:
    """Returns one list per new node."""
    if single:
        return [given]
    several = isinstance(given, Sequence | np.ndarray) and not isinstance(given, str)
    demand(
        several and all(np.ndim(some) == 1 for some in given),
        f"embed_new: {what} must be one list per node",
    )
    return list(given)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Lets PyTorch use one core: to wake another takes longer than these products."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _encode(
    encoder: LayeredEncoder, layers: Sequence[Layer], x: StoredFeatures, part: GrownPart
) -> Tensor:
    """Returns the embeddings of the new nodes, which are the last rows of the part."""
    graph, new = part.graph, torch.from_numpy(part.levels[-1])
    indptr, indices = borrow(graph.indptr), borrow(graph.indices)
    beside, h, place = encoder.beside, x, None
    out = torch.empty(len(new), encoder.width)
    if beside is not None and (columns := beside.columns(None)) is not None:
        out[:, columns] = beside.finish(stable_product(x.rows(new), beside.projection), columns)
    result = torch.empty(0)
    for number, (layer, level) in enumerate(zip(layers, part.levels, strict=True)):
        nodes = torch.from_numpy(level)
        means = mean_of_neighbourhoods(h, indptr, indices, nodes, place)
        block = padded_product(means, layer.pooled)
        if layer.own is not None:
            block += padded_product(h.rows(nodes if place is None else place[nodes]), layer.own)
        # With the rows that `padded_product` has added, so that ELU computes all in whole vectors.
        result = layer.finish(block, inplace=True)[: len(nodes)]
        if beside is not None and (columns := beside.columns(number)) is not None:
            out[:, columns] = beside.finish(result[len(nodes) - len(new) :], columns)
        h = StoredFeatures(result)
        place = torch.zeros(graph.num_nodes, dtype=torch.int64)
        place[nodes] = torch.arange(len(nodes))
    return result if beside is None else out
