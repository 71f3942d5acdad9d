"""Converts a typed graph to plain tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from graphcl.errors import RunError
from graphcl.graphs.filling import fill_features
from graphcl.graphs.graph import Graph
from graphcl.graphs.relation import Key, Relation
from graphcl.graphs.scaling import ColumnScaling, Scaling, fit_scaling
from graphcl.graphs.schema import Schema
from graphcl.graphs.tensors import feature_tensor
from graphcl.kernels.adjacency import Adjacency
from graphcl.kernels.features import Features, SparseFeatures


@dataclass(frozen=True)
class TypedScaling:
    """How the features of each type, and the vectors of each relation's edges, are scaled.

    Attributes:
        nodes: by type; a type that is missing is not scaled, as one that got the means of its
            neighbours' features, which are scaled already.
        edges: by relation; likewise.
    """

    nodes: Mapping[str, Scaling] = field(default_factory=dict)
    edges: Mapping[Key, Scaling] = field(default_factory=dict)

    def describe(self) -> list[str]:
        """Returns a line for each table that is scaled by what it holds."""
        named = [(f"type {name}", one) for name, one in self.nodes.items()]
        named += [(f"relation {':'.join(key)}", one) for key, one in self.edges.items()]
        return [
            f"{name}: {one.describe()}" for name, one in named if isinstance(one, ColumnScaling)
        ]

    def tensors(self) -> dict[str, Tensor]:
        """Returns the statistics as a run keeps them; tables are named by their number."""
        parts: dict[str, Tensor] = {}
        tables: Mapping[Any, Scaling]
        for kind, tables in (("nodes", self.nodes), ("edges", self.edges)):
            for name, one in tables.items():
                said = name if isinstance(name, str) else ":".join(name)
                if isinstance(one, ColumnScaling):
                    parts |= {f"{kind}/{said}/{part}": t for part, t in one.tensors().items()}
        return parts

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], schema: Schema) -> Self:
        """Reads what `tensors` returned for the tables of a graph.

        Raises:
            RunError: a part is missing, or has a wrong type, size or value.
        """

        def read(prefix: str, width: int) -> Scaling:
            start = f"{prefix}/"
            own = {
                name.removeprefix(start): one
                for name, one in tensors.items()
                if name.startswith(start)
            }
            try:
                return ColumnScaling.from_tensors(own, width)
            except RunError as error:
                raise RunError(f"{prefix}: {error}") from None

        types = [one for one in schema.types if one.filled != "neighbours"]
        vectors = [one for one in schema.relations if one.num_edge_features and one.num_edges]
        return cls(
            {one.name: read(f"nodes/{one.name}", one.num_features) for one in types},
            {one.key: read(f"edges/{':'.join(one.key)}", one.num_edge_features) for one in vectors},
        )


@dataclass(frozen=True)
class Prepared:
    """A typed graph whose types all have features, which are scaled.

    Attributes:
        graph: with these features.
        schema: what the graph is made of, and which features were not given.
        scaling: how features were scaled; those of edges are not yet.
    """

    graph: Graph
    schema: Schema
    scaling: TypedScaling


def prepare(graph: Graph, feature_scaling: str) -> Prepared:
    """Scales the features of a graph to train on, and gives features to types without any.

    With ``auto``, the columns of each table decide, also of vectors of edges. With ``row``, vectors
    of edges stay as they are: the sum of such a row means nothing.
    """
    nodes: dict[str, Scaling] = {}

    def scale(name: str, x: Any) -> Any:
        nodes[name] = fit_scaling(feature_scaling, [_table(x)], inductive=False)
        return _scaled(x, nodes[name])

    filled, schema = fill_features(graph, scale=scale)
    edges: dict[Key, Scaling] = {}
    if feature_scaling == "auto":
        edges = {
            key: fit_scaling("auto", [_table(one.edge_features)], inductive=False)
            for key, one in graph.relations.items()
            if one.edge_features is not None and one.num_edges
        }
    return Prepared(filled, schema, TypedScaling(nodes, edges))


def prepare_like(graph: Graph, schema: Schema, scaling: TypedScaling) -> Graph:
    """Prepares another graph as the one that was trained on.

    Raises:
        GraphError: it has types, relations or features that the other one had not.
    """
    return fill_features(
        graph, schema, scale=lambda name, x: _scaled(x, scaling.nodes.get(name, "none"))
    )[0]


def typed_tensors(
    graph: Graph,
    *,
    device: torch.device,
    scaling: TypedScaling = TypedScaling(),
    dtype: torch.dtype = torch.float32,
) -> tuple[dict[str, Features], dict[Key, Adjacency]]:
    """Returns the features of each type and the edges of each relation on `device`.

    The features of nodes are as they should be; `scaling` is applied to those of edges.
    """
    x: dict[str, Features] = {}
    for name, nodes in graph.nodes.items():
        table = feature_tensor(_table(nodes.x), device=device)
        x[name] = table.to(dtype) if isinstance(table, Tensor) else _typed(table, dtype)
    relations = {
        key: relation_adjacency(graph, one, device=device, scaling=scaling, dtype=dtype)
        for key, one in graph.relations.items()
    }
    return x, relations


def relation_adjacency(
    graph: Graph,
    relation: Relation,
    *,
    device: torch.device,
    scaling: TypedScaling,
    dtype: torch.dtype = torch.float32,
) -> Adjacency:
    """Returns the edges of one relation on `device`."""
    within = relation.source == relation.target
    return Adjacency.from_csr(
        relation.indptr,
        relation.indices,
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
    vectors: Any, key: Key, *, device: torch.device, scaling: TypedScaling
) -> Tensor | None:
    """Returns the vectors of a relation's entries scaled, or None if they have none."""
    if vectors is None:
        return None
    if not len(vectors):
        return torch.zeros(0, vectors.shape[1], device=device)
    chosen = scaling.edges.get(key, "none")
    found: Any = feature_tensor(_table(vectors), device=device, feature_scaling=chosen)
    return found  # type: ignore[no-any-return]


def _table(x: Any) -> Graph:
    """Returns a table as a plain graph without edges, which can be scaled."""
    return Graph.from_csr(np.zeros(x.shape[0] + 1, np.int64), np.zeros(0, np.int64), x)


def _scaled(x: Any, scaling: Scaling) -> Any:
    """Returns a table scaled, dense or sparse as `feature_tensor` leaves it."""
    found = feature_tensor(_table(x), device=torch.device("cpu"), feature_scaling=scaling)
    if isinstance(found, Tensor):
        return found.numpy()
    parts = (found.values.numpy(), found.indices.numpy(), found.indptr.numpy())
    return scipy.sparse.csr_array(parts, shape=found.shape)


def _typed(x: SparseFeatures, dtype: torch.dtype) -> SparseFeatures:
    return x if x.values.dtype == dtype else x.with_values(x.values.to(dtype))
