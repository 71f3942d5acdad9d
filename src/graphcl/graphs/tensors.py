"""A graph ready for an encoder: features for every type, how they are scaled, plain tensors."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from graphcl.errors import ParameterError, demand
from graphcl.graphs.filling import fill_features
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import EDGE, NODE, Key, Relation
from graphcl.graphs.scaling import ColumnScaling, Rows, Scaling, TableScaling, fit_tables
from graphcl.graphs.schema import Schema
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.buffers import borrow
from graphcl.kernels.features import Features, SparseFeatures
from graphcl.kernels.stored_features import ColumnTransform, StoredFeatures, size_of_rows

_BLOCK = 1 << 22  # values that are scaled at a time
FEATURE_SCALINGS = ("none", "row", "unit", "auto")
BY_ROWS = ("row", "unit")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Prepared:
    """A graph whose types all have features, and how these are scaled.

    Attributes:
        graph: with these features; they are not scaled yet, but for means of neighbours' features.
            A plain graph has the names `NODE` and `EDGE`.
        schema: what the graph is made of, and which features were not given.
        scaling: of the features of nodes and of edges.
    """

    graph: Graph
    schema: Schema
    scaling: Scaling

    @property
    def tables(self) -> dict[str, Any]:
        """The features of each type, before they are scaled."""
        return {name: one.x for name, one in self.graph.nodes.items()}

    def tensors(self, device: torch.device) -> tuple[Any, Any]:
        """Returns what an encoder is called with; see `graph_tensors`."""
        return graph_tensors(
            self.graph, device=device, feature_scaling=self.scaling, plain=self.schema.is_plain
        )


def prepare(
    graphs: Sequence[Graph], feature_scaling: str, *, inductive: bool = False
) -> list[Prepared]:
    """Decides how features of graphs to train on are scaled; types without any get some.

    With ``auto``, the columns of each table decide, also of vectors of edges; with `inductive`, in
    the rows of training nodes alone. With ``row``, vectors of edges stay as they are: the sum of
    such a row means nothing. Labels are never looked at.

    Args:
        graphs: one; or several plain ones, which are scaled alike.
        feature_scaling: the recipe's word.
        inductive: only training nodes may be seen.
    """
    for graph in graphs:
        graph.check()
    graphs = [_usual_names(graph) for graph in graphs]
    first, *others = graphs
    nodes = {
        name: fit_tables(
            feature_scaling, [_seen(graph.nodes[name], inductive=inductive) for graph in graphs]
        )
        for name, one in first.nodes.items()
        if one.x is not None
    }
    filled, schema = fill_features(first, scale=lambda name, x: _scaled(x, nodes[name]))
    for one in schema.types:
        if one.filled == "structure":
            nodes[one.name] = fit_tables(feature_scaling, [Rows(filled.nodes[one.name].x)])
    edges = {
        key: fit_tables("auto", [Rows(relation.edge_features)])
        for key, relation in first.relations.items()
        if feature_scaling == "auto" and relation.num_edge_features and relation.num_edges
    }
    if first.is_plain:
        schema = Schema.plain(first.num_features)
    scaling = Scaling(nodes, edges)
    alike = [prepare_like(other, schema, scaling) for other in others]
    return [Prepared(filled, schema, scaling), *alike]


def prepare_like(graph: Graph, schema: Schema, scaling: Scaling) -> Prepared:
    """Prepares another graph as the one that was trained on.

    Raises:
        GraphError: it has types, relations or features that the other one had not.
    """
    schema.check(graph)
    if schema.is_plain:
        return Prepared(_usual_names(graph), schema, scaling)
    filled, _ = fill_features(
        graph, schema, scale=lambda name, x: _scaled(x, scaling.nodes.get(name, "none"))
    )
    return Prepared(filled, schema, scaling)


def _usual_names(graph: Graph) -> Graph:
    """Returns a plain graph with the names that encoders know; any other one as it is."""
    if not graph.is_plain or (NODE in graph.nodes and EDGE in graph.relations):
        return graph
    nodes, (source, name, target) = replace(graph.only_type, name=NODE), EDGE
    edges = replace(graph.only_relation, source=source, name=name, target=target)
    return replace(graph, nodes={NODE: nodes}, relations={EDGE: edges})


def _seen(nodes: Nodes, *, inductive: bool) -> Rows:
    """Returns the rows of a type that training may look at."""
    mask = nodes.train_mask if inductive else None
    return Rows(nodes.x, None if mask is None else np.flatnonzero(mask))


def graph_tensors(
    graph: Graph,
    *,
    device: torch.device,
    feature_scaling: TableScaling | Scaling = "none",
    dtype: torch.dtype = torch.float32,
    plain: bool | None = None,
) -> tuple[Any, Any]:
    """Returns the features of each type and the edges of each relation on `device`.

    Args:
        graph: all its types have features.
        device: where the tensors will be.
        feature_scaling: of all tables of nodes: ``none``; ``row``: each node's features are divided
            by the sum of their absolute values, as is usual for bags of words; ``unit``: by their
            length, the root of the sum of their squares; or, as
            ``auto`` has found them in the training rows, that of each table.
        dtype: of the tensors.
        plain: return the only table and the only adjacency themselves; None does for a plain graph.
    """
    graph.check()
    x: dict[str, Features] = {
        name: feature_tensor(
            nodes.x, device=device, feature_scaling=table_scaling(feature_scaling, name)
        ).to(dtype)
        for name, nodes in graph.nodes.items()
    }
    relations = {
        key: relation_adjacency(graph, one, device=device, scaling=feature_scaling, dtype=dtype)
        for key, one in graph.relations.items()
    }
    if graph.is_plain if plain is None else plain:
        (only,), (edges,) = x.values(), relations.values()
        return only, edges
    return x, relations


def table_scaling(scaling: TableScaling | Scaling, name: str) -> TableScaling:
    """Returns how the features of a type are scaled."""
    return scaling.nodes.get(name, "none") if isinstance(scaling, Scaling) else scaling


def relation_adjacency(
    graph: Graph,
    relation: Relation,
    *,
    device: torch.device,
    scaling: TableScaling | Scaling = "none",
    dtype: torch.dtype = torch.float32,
) -> Adjacency:
    """Returns the edges of one relation on `device`."""
    within = relation.source == relation.target
    return Adjacency.from_csr(
        relation.indptr,
        np.asarray(relation.indices, np.int64),  # a store may have int32
        relation.edge_weight,
        device=device,
        dtype=dtype,
        edge_ids=relation.edge_ids,
        senders=None if within else graph.nodes[relation.source].num_nodes,
        directed=not relation.undirected,
        edge_features=edge_vectors(
            relation.edge_features, relation.key, device=device, scaling=scaling
        ),
    )


def edge_vectors(
    vectors: Any, key: Key, *, device: torch.device, scaling: TableScaling | Scaling
) -> Tensor | None:
    """Returns the vectors of a relation's entries scaled, or None if they have none."""
    if vectors is None:
        return None
    if not len(vectors):
        return torch.zeros(0, vectors.shape[1], device=device)
    chosen = scaling.edges.get(key, "none") if isinstance(scaling, Scaling) else "none"
    found: Any = feature_tensor(vectors, device=device, feature_scaling=chosen)
    return found  # type: ignore[no-any-return]


def feature_tensor(
    x: Any,
    *,
    device: torch.device,
    feature_scaling: TableScaling = "none",
) -> Features:
    """Returns a table of features as `Nodes` has it in float32.

    Dense, unscaled float32 features on a CPU share the table's memory; other features are copied.
    """
    columns, name = _resolved(feature_scaling)
    found: Features
    if x.dtype == np.float16:
        found = stored_features(x).to_dense(device)
    elif isinstance(x, np.ndarray):
        found = borrow(x).to(device)
    else:
        found = SparseFeatures.from_csr(x, device=device)
    if columns is not None:
        return _scale_columns(found, columns.transform(device))
    return _scale_rows(found, name) if name in BY_ROWS else found


def stored_features(x: Any, *, feature_scaling: TableScaling = "none") -> StoredFeatures:
    """Returns dense features as they are in memory or in a store, without a copy.

    Scaling rows or words needs one pass over the table and four bytes per node.
    """
    scaled, name = _resolved(feature_scaling)
    found = StoredFeatures(borrow(x))
    if scaled is not None:
        return found.with_transform(scaled.transform(CPU))
    return found.with_scaled_rows(name) if name in BY_ROWS else found


def _scaled(x: Any, scaling: TableScaling) -> Any:
    """Returns a table scaled, dense or sparse as `feature_tensor` leaves it."""
    found = feature_tensor(x, device=CPU, feature_scaling=scaling)
    if isinstance(found, Tensor):
        return found.numpy()
    parts = (found.values.numpy(), found.indices.numpy(), found.indptr.numpy())
    return scipy.sparse.csr_array(parts, shape=found.shape)


def _resolved(feature_scaling: TableScaling) -> tuple[ColumnScaling | None, str]:
    """Returns what is done to columns, or None and the name of what is done to the whole table."""
    if isinstance(feature_scaling, ColumnScaling):
        return (None if feature_scaling.plain else feature_scaling), feature_scaling.plain
    demand(
        feature_scaling != "auto",
        "feature_scaling 'auto' is fitted to training rows first: prepare",
        ParameterError,
    )
    if feature_scaling not in FEATURE_SCALINGS:
        known = " or ".join(FEATURE_SCALINGS)
        raise ParameterError(f"feature_scaling must be {known}; got {feature_scaling!r}")
    return None, feature_scaling


def _scale_columns(x: Features, transform: ColumnTransform) -> Features:
    """Returns the features transformed; sparse ones stay sparse if zeros stay zeros."""
    if not isinstance(x, Tensor) and not transform.keeps_zeros:
        x = x.to_dense()
    if isinstance(x, Tensor):
        out = torch.empty_like(x)
        height = max(1, _BLOCK // x.shape[1])
        for start in range(0, len(x), height):
            block = x[start : start + height]
            out[start : start + height] = transform(block, transform.divisors(block))
        return out
    divisors = _divisors(x, x.values * transform.words[x.indices], "unit")
    return x.with_values(transform.entries(x.values, x.indices, divisors))


def _scale_rows(x: Features, scaling: str) -> Features:
    if isinstance(x, Tensor):
        return x / size_of_rows(x, scaling)[:, None]
    return x.with_values(x.values / _divisors(x, x.values, scaling))


def _divisors(x: SparseFeatures, values: Tensor, scaling: str) -> Tensor:
    """Returns for each entry what its row is divided by, if it holds `values`."""
    lengths = x.indptr.diff()
    rows = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    given = values.abs() if scaling == "row" else values.double().square()  # as `size_of_rows`
    sizes = given.new_zeros(len(lengths)).index_add_(0, rows, given)
    sizes = sizes if scaling == "row" else sizes.sqrt().to(values.dtype)
    return torch.where(sizes > 0, sizes, 1)[rows]
