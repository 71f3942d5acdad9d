"""The graph container. It is validated once, when it is built, and immutable afterwards.

All other modules rely on what is checked here, and do not check it again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import scipy.sparse

from graphcl.errors import GraphError, StoreError, counted, require
from graphcl.graphs import interchange, validation
from graphcl.graphs.validation import BoolArray, FloatArray, IntArray, NoArray
from graphcl.store import reader as store
from graphcl.store import writer as store_writer
from graphcl.store.columns import Names, ScaledFeatures
from graphcl.store.reader import MASKS


@dataclass(frozen=True, eq=False, repr=False)
class Graph(NoArray):
    r"""An undirected attributed graph :math:`(X, A)`, read-only, in memory or mapped from a store.

    Build one with `from_edge_index`, `from_pyg`, `from_networkx` or `from_scipy`. Edges may be
    given in one direction or in both. Duplicates are merged. Self-loops are counted and removed,
    because the encoders add their own (:math:`A + I`). `save` writes a store, `open` maps one.

    Attributes:
        indptr: CSR row pointers, ``[num_nodes + 1]``.
        indices: CSR column indices, each undirected edge twice, sorted in each row.
        x: features ``[num_nodes, num_features]``: a float32 array, or a `scipy.sparse.csr_array`
            if they were given as sparse; from a store also float16, or `ScaledFeatures` (int8).
        y: labels, ``[num_nodes]`` (class numbers; −1 is unlabelled) or ``[num_nodes, labels]``
            (0/1; a row of −1 is an unlabelled node, a row of zeros one with none of them), or None.
        edge_weight: float32, positive, one per entry of `indices` and equal in both directions;
            None if edges are unweighted. `graphcl.kernels.adjacency` explains how weights are used.
        train_mask: the nodes that the probe learns from, or None.
        val_mask: the nodes on which the probe's regularisation strength is chosen, or None.
        test_mask: the nodes that are scored, or None.
        splits: bool ``[splits, 3, num_nodes]``: the train, validation and test nodes of each split,
            if there are several; the three masks are then those of the first. See `split`.
        node_ids: the caller's ids of the nodes, or None if they are ``0 … num_nodes − 1``.
        self_loops_removed: number of self-loops in the input.
        name: the graph's name in messages and reports.
        store: the folder that the arrays are mapped from; None if they are in memory.
        class_names: the names of the classes, or of the labels, in the order of their numbers;
            empty if they have none.
        preparation: what turned the columns of a node table into `x`, or None; a run keeps it, and
            `read_tables` applies it to other tables.
    """

    indptr: IntArray
    indices: IntArray
    x: FloatArray | scipy.sparse.csr_array | ScaledFeatures
    y: IntArray | None = None
    train_mask: BoolArray | None = None
    val_mask: BoolArray | None = None
    test_mask: BoolArray | None = None
    node_ids: npt.NDArray[Any] | Names | None = None
    self_loops_removed: int = 0
    name: str = "graph"
    store: Path | None = None
    edge_weight: FloatArray | None = None
    splits: BoolArray | None = None
    class_names: tuple[str, ...] = ()
    preparation: Any = None

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
            elif scipy.sparse.issparse(value):
                for part in (value.data, value.indices, value.indptr):
                    part.flags.writeable = False

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Any,
        x: Any,
        y: Any = None,
        *,
        edge_weight: Any = None,
        train_mask: Any = None,
        val_mask: Any = None,
        test_mask: Any = None,
        node_ids: Any = None,
        class_names: Sequence[str] = (),
        name: str = "graph",
    ) -> Self:
        """Builds a graph from an edge list ``[2, num_edges]`` and a feature table.

        Accepts arrays, tensors on any device and nested lists. The arguments are not changed.

        Args:
            edge_index: node numbers in two rows; each edge in one direction or in both.
            x: features, one row per node, dense or sparse; its length is the number of nodes.
            y: class numbers (−1: unlabelled), or a 0/1 matrix for several labels per node (a row
                of −1 or NaN: unlabelled; of zeros: none of them); or names of classes: an array of
                texts (None: unlabelled), a mapping from ids, or a pandas Series, by its index of
                ids. `class_names` are then these.
            edge_weight: a positive number per column of `edge_index`. Weights of columns that name
                the same edge are added. If every edge is listed in both directions with equal
                weights, each edge counts once.
            train_mask: the nodes that the probe learns from: booleans, or node numbers. With
                several splits, booleans ``[num_nodes, splits]``; so too for the other masks.
            val_mask: the nodes on which the probe's regularisation strength is chosen.
            test_mask: the nodes that are scored.
            node_ids: ids of the nodes, in the order of `x`.
            class_names: the name of each class or label, by its number.
            name: the graph's name in messages.

        Raises:
            GraphError: an array is wrong; the message names the array, the place and the value.
        """
        features = validation.features(x)
        num_nodes = features.shape[0]
        indptr, indices, self_loops = validation.structure(edge_index, num_nodes)
        if edge_weight is not None:
            edge_weight = validation.edge_weight(edge_weight, edge_index, num_nodes)
        masks = {"train_mask": train_mask, "val_mask": val_mask, "test_mask": test_mask}
        masks, splits = validation.splits(masks, num_nodes)
        ids = validation.node_ids(node_ids, num_nodes)
        labels, class_names = validation.labels(y, num_nodes, ids, class_names)
        return cls(
            indptr=indptr,
            indices=indices,
            x=features,
            y=labels,
            node_ids=ids,
            self_loops_removed=self_loops,
            edge_weight=edge_weight,
            name=name,
            splits=splits,
            class_names=class_names,
            **masks,
        )

    @classmethod
    def from_pyg(cls, data: Any, *, name: str = "graph") -> Self:
        """Builds a graph from a `torch_geometric.data.Data` (on any device).

        A warning names what is left out, such as ``edge_attr`` or ``pos``.
        """
        return cls.from_edge_index(name=name, **_with_features(interchange.arrays_from_pyg(data)))

    @classmethod
    def from_networkx(
        cls,
        graph: Any,
        x: Any = None,
        y: Any = None,
        *,
        features: str | Sequence[str] = "x",
        labels: str = "y",
        weight: str | None = None,
        name: str = "graph",
    ) -> Self:
        """Builds a graph from a NetworkX graph; node names become `node_ids`.

        Args:
            graph: any NetworkX graph; directions are ignored and parallel edges are merged.
            x: features in the order of ``graph.nodes``; None reads the attribute `features`.
            y: labels in the same order; None reads the attribute `labels`, if nodes have it.
            features: the node attribute with a number or a vector per node, or several of them:
                ``["age", "income"]``; ``structural`` computes features from the edges.
            labels: the node attribute with the class number or name.
            weight: the edge attribute with a positive weight; None leaves edges unweighted.
            name: the graph's name in messages.
        """
        computed = x is None and features == "structural"
        named = () if computed or x is not None else features
        arrays = interchange.arrays_from_networkx(
            graph, features=named, labels=labels, weight=weight
        )
        if x is not None:
            arrays["x"] = x
        if computed:
            from graphcl.graphs.structural import structural_features

            edges = validation.structure(arrays["edge_index"], arrays["num_nodes"])
            arrays["x"] = structural_features(*edges[:2])
        if y is not None:
            arrays["y"] = y
        return cls.from_edge_index(name=name, **_with_features(arrays))

    @classmethod
    def from_scipy(
        cls, adjacency: Any, x: Any, y: Any = None, *, name: str = "graph", **masks: Any
    ) -> Self:
        """Builds a graph from a square sparse matrix: every stored non-zero value is an edge.

        Values are edge weights and must be positive; if all are 1, edges are unweighted.
        """
        arrays = interchange.arrays_from_scipy(adjacency) | {"x": x, "y": y}
        return cls.from_edge_index(name=name, **_with_features(arrays), **masks)

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = False) -> Self:
        """Maps a store into memory. It takes milliseconds for any size, and loads nothing.

        Args:
            path: a folder that `save` or `graphcl build` wrote.
            verify: read the whole store and compare it with its checksums.

        Raises:
            StoreError: a file is missing, or does not match the store's description.
        """
        if verify:
            store.verify_store(Path(path))
        graph = cls(**store.open_store(Path(path)), store=Path(path))
        if verify:
            graph.check()
        return graph

    def save(self, path: str | Path, *, features: str = "float32", overwrite: bool = False) -> None:
        """Writes the graph as a store, which appears complete or not at all.

        Args:
            path: the folder.
            features: ``float32``, ``float16`` or ``int8``; sparse features stay sparse float32. The
                scales of int8 come from the training nodes, if the graph has a `train_mask`.
            overwrite: replace an existing store. Anything else at `path` is never touched.

        Raises:
            StoreError: there are several splits; a store holds one.
        """
        if self.splits is not None:
            raise StoreError(
                f"{self.name}: has {self.num_splits} splits and a store holds one; "
                "save graph.split(0), or another"
            )
        store_writer.write_store(Path(path), vars(self), features=features, overwrite=overwrite)

    def check(self) -> None:
        """Checks a store's structure once, before a compiled loop relies on it.

        All functions of this package that compute on a graph call it; your own compiled loops
        should too. Graphs in memory were checked when they were built.

        Raises:
            StoreError: the structure is damaged; the message says where.
        """
        if self.store is not None and "_checked" not in vars(self):
            store.check_structure(str(self.store), vars(self))
            object.__setattr__(self, "_checked", True)

    def to_pyg(self, *, sparse: bool = False) -> Any:
        """Returns a `torch_geometric.data.Data`: both directions of each edge, dense features.

        Args:
            sparse: keep sparse features as a `torch.sparse_csr` tensor; few PyG layers accept it.
        """
        import torch
        from torch_geometric.data import Data

        data = Data(edge_index=torch.from_numpy(self.edge_index()), num_nodes=self.num_nodes)
        if isinstance(self.x, np.ndarray | ScaledFeatures):
            data.x = torch.from_numpy(np.array(self.x, dtype=np.float32))
        elif sparse:
            csr = (self.x.indptr.astype(np.int64), self.x.indices.astype(np.int64), self.x.data)
            indptr, indices, values = (torch.from_numpy(part.copy()) for part in csr)
            data.x = torch.sparse_csr_tensor(indptr, indices, values, size=self.x.shape)
        else:
            data.x = torch.from_numpy(self.x.toarray())
        wide = (
            {}
            if self.splits is None
            else dict(zip(MASKS, self.splits.transpose(1, 2, 0), strict=True))
        )
        for field in ("y", "edge_weight", *MASKS):
            value = wide.get(field, getattr(self, field))
            if value is not None:
                setattr(data, field, torch.from_numpy(value.copy()))
        return data

    def edge_index(self) -> IntArray:
        """Returns both directions of every edge, ``[2, 2 · num_edges]``, sorted by row."""
        rows = np.repeat(np.arange(self.num_nodes), np.diff(self.indptr))
        return np.stack([rows, self.indices])

    @property
    def num_nodes(self) -> int:
        """Number of nodes, N."""
        return int(self.x.shape[0])

    @property
    def num_edges(self) -> int:
        """Number of undirected edges."""
        return len(self.indices) // 2

    @property
    def num_features(self) -> int:
        """Number of features, P."""
        return int(self.x.shape[1])

    @cached_property
    def num_classes(self) -> int:
        """Number of classes, or of labels per node if there are several; 0 without labels."""
        if self.y is None or self.y.size == 0:
            return 0
        return int(self.y.shape[1] if self.y.ndim == 2 else self.y.max() + 1)

    @property
    def has_split(self) -> bool:
        """Whether the graph has training, validation and test nodes."""
        masks = (self.train_mask, self.val_mask, self.test_mask)
        return all(mask is not None and bool(mask.any()) for mask in masks)

    @property
    def num_splits(self) -> int:
        """Number of splits into training, validation and test nodes; 0 without a whole one."""
        return int(self.has_split) if self.splits is None else len(self.splits)

    def split(self, number: int) -> Self:
        """Returns the graph with its split `number`, from 0, as its only one."""
        if self.splits is None:
            require(number == 0, "Graph.split", "number", "0: there are no others", number)
            return self
        count = len(self.splits)
        require(0 <= number < count, "Graph.split", "number", f"in [0, {count})", number)
        train, val, test = (mask if mask.any() else None for mask in self.splits[number])
        return replace(self, train_mask=train, val_mask=val, test_mask=test, splits=None)

    def __repr__(self) -> str:
        kind = "sparse" if scipy.sparse.issparse(self.x) else "dense"
        parts = [
            counted(self.num_nodes, "node"),
            counted(self.num_edges, "edge"),
            counted(self.num_features, f"{kind} feature"),
        ]
        if self.y is not None:
            parts.append(counted(self.num_classes, "class", "classes"))
        return f"Graph({self.name!r}: {', '.join(parts)})"


def split_gap(graph: Graph) -> str:
    """Describes an incomplete split; returns an empty string if all masks or none are given."""
    masks = {"train": graph.train_mask, "validation": graph.val_mask, "test": graph.test_mask}
    given = [name for name, mask in masks.items() if mask is not None and mask.any()]
    missing = [name for name in masks if name not in given]
    if not (given and missing):
        return ""
    return f"{' and '.join(given)} nodes are given, {' and '.join(missing)} nodes are not"


def _with_features(arrays: dict[str, Any]) -> dict[str, Any]:
    if arrays.get("x") is None:
        raise GraphError("the graph has no features; pass x, one row per node")
    num_nodes = arrays.pop("num_nodes", None)
    rows = arrays["x"].shape[0] if hasattr(arrays["x"], "shape") else len(arrays["x"])
    if num_nodes is not None and rows != num_nodes:
        raise GraphError(f"x: {rows} rows for {num_nodes} nodes")
    return arrays
