"""Embeddings of nodes that a graph does not have yet, in milliseconds, without rebuilding it.

`grown_part` finds the few hundred nodes that matter. Of these, each layer is computed where it is
needed, by the loops of `graphcl.embedding`: on a CPU, the embeddings have the bits that the grown
graph embedded whole would give. Everything here is so little work that a second core only costs
time, so one is used.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from graphcl.embedding import embed_graph
from graphcl.encoders import Layer, LayeredEncoder
from graphcl.errors import GraphError, suggestion
from graphcl.estimator.fitted import Fitted
from graphcl.estimator.inference import chosen_nodes, embed_fitted
from graphcl.graphs.graph import Graph
from graphcl.graphs.growing import GrownPart, grown_graph, grown_part, new_nodes
from graphcl.graphs.scaling import ColumnScaling
from graphcl.graphs.tensors import stored_features
from graphcl.kernels.buffers import borrow
from graphcl.kernels.columns import ColumnTransform
from graphcl.kernels.features import UNIT
from graphcl.kernels.stored_features import StoredFeatures, mean_of_neighbourhoods

Rows = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
MOST_ROWS = 4096  # of a layer; with more, several cores are faster
_IDS = 1 << 16  # that are hashed at a time
_COMPARED = 1 << 12  # ids that one which is not known is compared with


class Live:
    """A model beside a graph, ready to embed new nodes; build it with `GraphCL.live`.

    It holds what does not depend on the new nodes: where ids are (16 bytes per node, made when a
    text is first asked for), how features are scaled, the weights. It can be used by several
    threads. A later `fit` of the model does not change it.
    """

    def __init__(self, fitted: Fitted, graph: Graph, device: torch.device) -> None:
        graph.check()
        found, wanted = graph.num_features, fitted.num_features
        if found != wanted:
            raise GraphError(
                f"{graph.name}: has {found} features; the model was trained on {wanted}"
            )
        self._weighted = graph.edge_weight is not None
        # As in `embed_graph`: if every weight is 1, edges have none.
        if graph.edge_weight is not None and bool((graph.edge_weight == 1).all()):
            graph = graph.replace(edge_weight=None)
        self.graph, self._fitted, self._device = graph, fitted, device
        encoder = fitted.encoder.to(device).eval()
        self._layers = encoder.statement() if isinstance(encoder, LayeredEncoder) else ()
        self._transform: ColumnTransform | None = None
        scaling = fitted.scaling
        if isinstance(scaling, ColumnScaling) and not scaling.plain:
            self._transform = scaling.transform(torch.device("cpu"))
        self._ids: _Ids | None = None

    def rows_of(self, nodes: Any) -> IntArray:
        """Returns the rows of nodes of the graph: whole numbers are rows, texts are ids.

        Raises:
            GraphError: a number is out of range, or no node has an id.
        """
        given = np.atleast_1d(np.asarray(nodes))
        if given.ndim == 1 and not len(given):
            return np.zeros(0, np.int64)
        if given.dtype.kind in "biu" or given.ndim != 1:
            found = chosen_nodes(self.graph, given)
            assert isinstance(found, np.ndarray)
            return found
        if given.dtype.kind == "f":
            raise GraphError(f"embed_new: nodes must be whole numbers or ids; got {given[0]}")
        if self._ids is None:
            self._ids = _Ids(self.graph)
        return np.array([self._ids.row(str(name)) for name in given.tolist()], dtype=np.int64)

    def embed_new(
        self, features: Any, neighbours: Any, *, edges: Any = None, weights: Any = None
    ) -> Rows:
        """Returns the embeddings of new nodes, as `GraphCL.embed_new` describes."""
        if not self._weighted and (weights is not None or _have_weights(edges)):
            raise GraphError(
                f"embed_new: edges of {self.graph.name} have no weights; leave them out"
            )
        single = np.ndim(features) == 1
        lists = _lists(neighbours, single=single, what="neighbours")
        given = None if weights is None else _lists(weights, single=single, what="weights")
        new = new_nodes(
            self.graph,
            features,
            [self.rows_of(some) for some in lists],
            edges=edges,
            weights=given,
        )
        if self._layers:
            with torch.no_grad(), _one_thread():
                z = self._embed(grown_part(self.graph, new, len(self._layers)), len(new))
        else:  # how far such an encoder looks is not known
            whole = grown_graph(self.graph, new)
            last = slice(self.graph.num_nodes, whole.num_nodes)
            z = embed_fitted(self._fitted, whole, last, device=self._device)
        return z[0] if single else z

    def _aligned(self, z: Rows) -> Rows:
        alignment = self._fitted.alignment
        return z if alignment is None else alignment.apply(z)

    def _embed(self, part: GrownPart, number: int) -> Rows:
        graph = part.graph
        few = max(map(len, part.levels)) <= MOST_ROWS
        if not few or self._device.type != "cpu" or graph.edge_weight is not None:
            return self._embed_by_rows(graph, number)
        if not isinstance(graph.x, np.ndarray):
            return self._embed_by_rows(graph, number)
        if self._transform is None:
            scaling = self._fitted.scaling
            x = stored_features(graph, feature_scaling=scaling)
        else:
            x = StoredFeatures(borrow(graph.x)).with_transform(self._transform)
        encoder = self._fitted.encoder
        assert isinstance(encoder, LayeredEncoder)
        return self._aligned(_encode(encoder, self._layers, x, part).numpy())

    def _embed_by_rows(self, graph: Graph, number: int) -> Rows:
        """The plain way: the same embeddings by the loops that serve any graph."""
        last = np.arange(graph.num_nodes - number, graph.num_nodes)
        z = embed_graph(
            self._fitted.encoder,
            graph,
            device=self._device,
            feature_scaling=self._fitted.scaling,
            nodes=last,
        )
        return self._aligned(z)


def _have_weights(edges: Any) -> bool:
    """Returns whether edges among new nodes come with a weight each."""
    try:
        given = np.asarray([] if edges is None else edges, dtype=np.float64)
    except (TypeError, ValueError):
        return False  # they are refused later
    return given.ndim == 2 and given.shape[1] == 3 and len(given) > 0


def _lists(given: Any, *, single: bool, what: str) -> list[Any]:
    """Returns one list per new node."""
    if single:
        return [given]
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
        raise GraphError(f"embed_new: {what} must be one list per node")
    flat = any(np.ndim(some) != 1 for some in given)
    if flat:
        raise GraphError(f"embed_new: {what} must be one list per node")
    return list(given)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Lets PyTorch use one core: to wake another takes longer than these products."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
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
        own = _product(x.rows(new), beside.projection)[: len(new)]
        out[:, columns] = beside.finish(own, columns)
    result = torch.empty(0)
    for number, (layer, level) in enumerate(zip(layers, part.levels, strict=True)):
        nodes = torch.from_numpy(level)
        block = _product(mean_of_neighbourhoods(h, indptr, indices, nodes, place), layer.pooled)
        if layer.own is not None:
            block += _product(h.rows(nodes if place is None else place[nodes]), layer.own)
        # With the rows that `_product` has added, so that ELU computes all in whole vectors.
        result = layer.finish(block, inplace=True)[: len(nodes)]
        if beside is not None and (columns := beside.columns(number)) is not None:
            out[:, columns] = beside.finish(result[len(nodes) - len(new) :], columns)
        h = StoredFeatures(result)
        place = torch.zeros(graph.num_nodes, dtype=torch.int64)
        place[nodes] = torch.arange(len(nodes))
    return result if beside is None else out


def _product(rows: Tensor, weight: Tensor) -> Tensor:
    """Returns rows @ weight with rows of zeros added up to a multiple of `UNIT`.

    BLAS has other loops for a single row and for the last rows of a table.
    """
    padded = rows.new_zeros(len(rows) + -len(rows) % UNIT, rows.shape[1])
    padded[: len(rows)] = rows
    return padded @ weight


class _Ids:
    """Finds nodes by their ids: the hashes of all ids in order, and the row of each."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._plain = graph.node_ids is None
        if self._plain:
            return
        hashes = np.empty(graph.num_nodes, np.int64)
        for start in range(0, graph.num_nodes, _IDS):
            some = self._texts(start, start + _IDS)
            hashes[start : start + len(some)] = [hash(name) for name in some]
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]

    def _texts(self, start: int, stop: int) -> list[str]:
        ids: Any = self._graph.node_ids
        return [str(name) for name in ids[start : min(stop, self._graph.num_nodes)].tolist()]

    def row(self, name: str) -> int:
        """Returns the first row with an id.

        Raises:
            GraphError: there is none.
        """
        graph = self._graph
        if self._plain:
            number = int(name) if name.isascii() and name.isdecimal() and len(name) < 19 else -1
            if 0 <= number < graph.num_nodes and str(number) == name:
                return number
        else:
            code = hash(name)
            for place in range(int(np.searchsorted(self._hashes, code)), graph.num_nodes):
                if self._hashes[place] != code:
                    break
                row = int(self._order[place])
                if self._texts(row, row + 1) == [name]:
                    return row
        known = [] if self._plain else self._texts(0, _COMPARED)
        near = suggestion(name, known)
        raise GraphError(f"{graph.name}: no node has the id {name!r}{near}")
