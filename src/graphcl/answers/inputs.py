"""What answers take: embeddings, in memory or in shards, or a model; a graph; nodes by id; labels.

Ids of embeddings in shards come from `.parquet` shards, or with labels, split and degrees from the
store in parts. Nothing here imports a graph until one is needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphcl.arrays import Array
from graphcl.errors import GraphCLError, GraphError, RunError, demand, option, require
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.relation import NODE
from graphcl.partitioned.embeddings import (
    PartsNodes,
    ShardedEmbeddings,
    check_same_build,
    open_shards,
    read_parts_nodes,
    shard_types,
    type_shards,
)
from graphcl.runs.files import weights_digest
from graphcl.runs.versions import OwnGraphError
from graphcl.store.columns import Ids
from graphcl.store.header import is_divided, read_store

if TYPE_CHECKING:
    from graphcl.tabular.originals import Original

MOST_CLASSES = 50  # if nearly every node has a class of its own


def graph_of(graph: Any) -> Any:
    """Returns a graph, also from PyG or NetworkX; of a path of parts, its nodes alone.

    Raises:
        StoreError: there is no store in parts, or it is damaged.
        GraphError: it is no graph.
    """
    if not isinstance(graph, str | Path):
        from graphcl.graphs.collection import as_graphs

        return graph if graph is None or isinstance(graph, Nodes) else as_graphs(graph)
    return read_parts_nodes(Path(graph))


def embeddings_of(source: Any, graph: Any, owner: str) -> Any:
    """Returns embeddings ``[nodes, dim]``, from an array, shards, or a fitted model and its graph.

    Those of shards, given by the path of their folder, stay on disk.

    Raises:
        GraphError: a model without a graph, or embeddings that do not fit the graph.
        RunError: shards that are not whole, or not of the graph's build.
    """
    if isinstance(source, str | Path):
        source = open_shards(Path(source))
    if hasattr(source, "shards"):
        if isinstance(graph, PartsNodes):
            check_same_build(source, graph)
        elif graph is not None:  # rows of shards are in the numbering of the parts
            raise GraphError(f"{owner}: with shards, graph must be the path of the store in parts")
        return source
    if hasattr(source, "transform") and not hasattr(source, "to_numpy"):  # no data frame
        demand(graph is not None, f"{owner}: a model needs the graph to embed; pass graph=")
        source = source.transform(graph)
    if isinstance(source, Mapping):
        from graphcl.graphs.validation import several_types

        raise several_types(source, owner)
    from graphcl.graphs.interchange import embedding_table

    return embedding_table(source, owner, None if graph is None else graph.num_nodes)


def ids_of(graph: Any, z: Any) -> Any:
    """Returns the ids of a graph's nodes, or those in shards; without either, their numbers."""
    ids = None
    if graph is not None:
        ids = graph.node_ids
    elif hasattr(z, "shards"):
        ids = z.node_ids()
    if ids is None:
        return np.arange(len(z))
    return ids if hasattr(z, "shards") else ids[:]


def chosen_rows(ids: Any, nodes: Any, rows: Any, owner: str) -> Array:
    """Returns the rows that are asked for, by id or by row; all if neither is given."""
    found = Ids(ids).chosen(nodes, rows, owner, GraphError)
    return found if isinstance(found, np.ndarray) else np.arange(len(ids))[found or slice(None)]


def shards_of_run(
    run: Path, folder: Path, graph: Any, owner: str, *, node_type: str | None = None
) -> tuple[ShardedEmbeddings, Nodes]:
    """Returns embeddings that a run made of a store in parts, and what is known of their nodes.

    Args:
        run: the run that embedded them.
        folder: the shards.
        graph: the path of the store in parts, or None. Without it, nodes have ids alone, and a
            degree of 0.
        owner: the command, for messages.
        node_type: of a typed graph, the type of the nodes. Its shards are in a folder with those of
            the other types, or alone.

    Raises:
        RunError: a shard is missing, torn or not of this set; the shards are of another model or
            of other parts; or nothing gives ids.
    """
    if node_type is not None and shard_types(folder):
        folder = type_shards(folder, node_type)
    shards = open_shards(folder)
    demand(
        node_type is None or shards.name == node_type,
        f"{folder}: has embeddings of {shards.name!r}, not of {node_type!r}",
        RunError,
    )
    demand(
        not shards.model or shards.model == weights_digest(run),
        f"{folder}: these embeddings were made by another model than that of {run}",
        RunError,
    )
    if graph is None:
        ids = shards.node_ids()
        demand(
            ids is not None,
            f"{folder}: .npy shards have no ids; pass {option('graph', 'PARTS')}, or embed "
            "into a folder whose name ends in .parquet",
            RunError,
        )
        degree = np.zeros(len(shards), np.int64)
        return shards, Nodes(node_type or NODE, len(shards), node_ids=ids, degree=degree)
    path = Path(str(graph))
    known = is_divided(path) and read_store(path).is_plain == (node_type is None)
    require(known, owner, option("graph"), "the store in parts that was embedded", str(graph))
    nodes = read_parts_nodes(path, node_type)
    check_same_build(shards, nodes)
    return shards, nodes


def columns_of_run(
    run: Any, nodes: Nodes, node_type: str | None, *, read: bool
) -> "tuple[list[Original], str]":
    """Returns what is known of nodes as their owner knows it, and why columns lack, if they do.

    They are cells of the node table, or features; then labels and degrees. These alone where the
    graph cannot be read.

    Args:
        run: the `graphcl.Run`.
        nodes: what it keeps of them.
        node_type: of a typed graph: which.
        read: whether the graph may be read.
    """
    from graphcl.tabular.originals import MOST_VALUES, originals

    why = "" if read else "features are not compared: the graph is not read"
    try:
        if read:
            graph, kind = run.one_graph(), run.type_of(run.type_folder(node_type))
            own = graph.type(kind) if kind else graph.only_type
            nodes = replace(own, degree=nodes.degree)
            large = own.x is not None and own.x.size > MOST_VALUES
            why = "features are not compared: there are too many" if large else ""
    except OwnGraphError:
        raise
    except GraphCLError as error:
        why = f"of the columns of nodes nothing is known: {error}"
    return originals(nodes), why


@dataclass(frozen=True, eq=False)
class KnownLabels:
    """What is known of the labels of all nodes.

    Attributes:
        targets: 0/1 ``[nodes, classes]``; a row of zeros where nothing is known.
        known: which nodes are labelled, ``[nodes]`` booleans.
        classes: the name or number of each column; none of a number.
        several: whether a node may have several labels.
        number: whether the label is a number to predict; then `targets` are ``[nodes]``.
    """

    targets: Array
    known: Array
    classes: tuple[Any, ...]
    several: bool
    number: bool = False

    @property
    def kind(self) -> str:
        """``classes``, ``several`` labels or a ``number``."""
        return "number" if self.number else "several" if self.several else "classes"

    @property
    def is_binary(self) -> bool:
        """Whether there are two classes that exclude each other."""
        return len(self.classes) == 2 and not self.several

    def only(self, nodes: Array) -> "KnownLabels":
        """Returns the labels of some nodes, ``[nodes]`` booleans; the others become unknown."""
        known = self.known & nodes
        kept = known if self.number else known[:, None]
        return replace(self, targets=np.where(kept, self.targets, 0), known=known)


def known_labels(
    labels: Any, ids: Any, names: tuple[Any, ...] = (), *, kind: str = "auto"
) -> KnownLabels:
    """Returns labels in one form, from any that `predict` takes.

    Args:
        labels: the labels.
        ids: of all nodes.
        names: of the classes, if they are numbered.
        kind: ``classes``, a ``number`` to predict, or ``auto``; see `validation.is_number`.

    Raises:
        GraphError: they do not fit the nodes.
    """
    from graphcl.graphs.validation import numbered_labels

    given, own = numbered_labels(labels, ids, "predict", kind)
    names = own or names
    demand(
        given.ndim in (1, 2) and len(given) == len(ids),
        f"predict: labels {given.shape} for {len(ids)} nodes",
    )
    if given.ndim == 2:
        return _from_matrix(given, names)
    if given.dtype.kind == "f":
        known = ~np.isnan(given)
        return KnownLabels(np.where(known, given, 0.0), known, (), several=False, number=True)
    known, numbers = given != -1, given.astype(np.int64)
    demand(
        np.array_equal(numbers[known], given[known]) and (numbers[known] >= 0).all(),
        "predict: class numbers must be whole, 0 or more; −1 is unlabelled",
    )
    found = np.unique(numbers[known])
    demand(
        len(found) <= MOST_CLASSES or 2 * len(found) <= known.sum(),
        f"predict: {len(found):,} different labels of {int(known.sum()):,} nodes are no classes",
    )
    classes = [names[one] if one < len(names) else one for one in found.tolist()]
    targets = (numbers[:, None] == found) & known[:, None]
    return KnownLabels(targets.astype(np.int64), known, tuple(classes), several=False)


def _from_matrix(given: Array, names: tuple[Any, ...]) -> KnownLabels:
    whole = given.astype(np.float64)
    unknown = np.isnan(whole) | (whole == -1)
    demand(
        (unknown.any(axis=1) == unknown.all(axis=1)).all(),
        "predict: a node's labels must be known all or none; −1 is unknown",
    )
    known = ~unknown.any(axis=1)
    demand(np.isin(whole[known], (0, 1)).all(), "predict: several labels per node must be 0 or 1")
    targets = np.where(known[:, None], whole, 0).astype(np.int64)
    classes = tuple(names[one] if one < len(names) else one for one in range(given.shape[1]))
    return KnownLabels(targets, known, classes, several=True)
