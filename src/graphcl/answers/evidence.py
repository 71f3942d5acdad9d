"""What answers rest on: embeddings, their first hop, and columns of nodes.

Embeddings serve every question, so none of them is the best for one. With few labels, a regression
on a node's own words may be better than one on the whole embedding, or one on the words of its
neighbours' neighbours. `graphcl.evaluation.calibration` weighs such tables by held-out labels; here
they are made, without any label. `graphcl.answers.learning` learns from them.

Columns are looked at in two ways: as they are, with every row scaled to length 1, as words are; and
with every column scaled to one size. Many columns are turned into few: the regression's penalty
keeps its weights in the span of the labelled rows, so a basis of that is exact, and its
`MOST_COLUMNS` largest directions are enough.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.arrays import Array
from graphcl.evaluation.probe import standardiser
from graphcl.evaluation.smoothing import Around
from graphcl.graphs.graph import Graph
from graphcl.settings import ENCODER_OPTIONS

MOST_COLUMNS = 512  # of a table that is made of columns of nodes
MOST_ROWS = 2000  # labelled nodes whose columns span it
MOST_BYTES = 1 << 28  # of such a table; without it, the embedding has to do
EMBEDDING, UNSCALED, FIRST_HOP = "embedding", "embedding, unscaled", "one hop of the embedding"
OWN, OWN_SCALED, NEIGHBOURS = "own columns", "own columns, scaled", "columns two hops away"
TOGETHER = "embedding and own columns"
ITSELF, NEAR, FAR = "own columns", "neighbours", "their neighbours"  # parts of an embedding
SURROUNDINGS = "surroundings"  # of a recipe whose hops do not stand side by side


@dataclass(frozen=True, eq=False)
class Evidence:
    """Tables of the same nodes, and what becomes of their rows before a regression.

    Attributes:
        tables: ``[nodes, columns]`` each, by name.
        standard: what standardises rows of each.
        columns: of those tables that were made of columns of nodes: how.
        parts: which columns of the embedding are of what; see `embedding_parts`.
        around: the same tables with the graph's edges; None if there are none.
    """

    tables: Mapping[str, Any]
    standard: Mapping[str, Callable[[Array], Array]]
    columns: Mapping[str, "Columns"]
    parts: Mapping[str, slice] = field(default_factory=dict)
    around: Around | None = None

    def take(self, rows: Any) -> dict[str, Array]:
        """Returns rows of every table."""
        return {name: np.asarray(table[rows]) for name, table in self.tables.items()}

    def of_new(self, z: Array, x: Array, neighbours: Sequence[Array]) -> dict[str, Array]:
        """Returns the rows of nodes that the graph does not have.

        Args:
            z: their embeddings.
            x: their features.
            neighbours: the rows of the neighbours of each.
        """
        found = {EMBEDDING: z, UNSCALED: z}
        found |= {FIRST_HOP: z[:, self.parts[NEAR]]} if NEAR in self.parts else {}
        made = {name: one.of_new(x, neighbours) for name, one in self.columns.items()}
        if TOGETHER in self.tables:
            both = [self.standard[EMBEDDING](z), made[OWN_SCALED]]
            made[TOGETHER] = np.concatenate(both, axis=1, dtype=np.float32)
        return {name: (found | made)[name] for name in self.tables}

    def without(self, part: str, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Returns rows in which a part of what they say is that of the average node."""
        of_part = {ITSELF: (OWN, OWN_SCALED), NEAR: (FIRST_HOP,), FAR: (NEIGHBOURS,)}
        whole = of_part.get(part, (FIRST_HOP, NEIGHBOURS))
        found = dict(inputs)
        for name, rows in inputs.items():
            some = slice(None) if name in whole else None
            if name in (EMBEDDING, UNSCALED, TOGETHER):
                some = self.parts.get(part)
            if name == TOGETHER and part == ITSELF:  # its own columns are on both sides
                dim = self.tables[EMBEDDING].shape[1]
                some = np.r_[some or slice(0, 0), dim : rows.shape[1]]
            if some is not None:
                found[name] = rows.copy()
                found[name][:, some] = self._averages[name][some]
        return found

    @cached_property
    def _averages(self) -> dict[str, Array]:
        return {name: np.asarray(one[:]).mean(axis=0) for name, one in self.tables.items()}


def gather_evidence(
    z: Any, labelled: Array, *, graph: Any = None, parts: Mapping[str, slice] | None = None
) -> Evidence:
    """Returns the tables that a prediction may rest on.

    Args:
        z: embeddings of all nodes; those in shards stay on disk, and are all there is.
        labelled: the numbers of the labelled nodes.
        graph: the graph, or the nodes of a type. None: embeddings alone.
        parts: which columns of the embedding are of what; see `embedding_parts`.
    """
    tables: dict[str, Any] = {EMBEDDING: z}
    standard: dict[str, Callable[[Array], Array]] = {EMBEDDING: standardiser(z)}
    columns: dict[str, Columns] = {}
    means = neighbour_means(graph)
    if isinstance(z, np.ndarray):
        tables[UNSCALED] = z
        standard[UNSCALED] = _one_scale(z)
        if parts and NEAR in parts:
            tables[FIRST_HOP] = z[:, parts[NEAR]]
            standard[FIRST_HOP] = standardiser(tables[FIRST_HOP])
        x: Any = getattr(graph, "x", None)
        wide = min(MOST_COLUMNS, len(labelled))
        if is_table(x) and x.shape[0] * wide * 4 <= MOST_BYTES:
            size = float(np.sqrt(z.shape[1]))
            columns[OWN] = Columns.of(x, _unit_rows, labelled, size)
            columns[OWN_SCALED] = Columns.of(x, _unit_columns(x), labelled, size)
            if means is not None:
                columns[NEIGHBOURS] = Columns.of(x, _unit_rows, labelled, size, means)
            tables |= {name: one.table for name, one in columns.items()}
            standard |= dict.fromkeys(columns, np.asarray)  # as they are
            own, of_own = standard[EMBEDDING], columns[OWN_SCALED].table
            tables[TOGETHER] = np.concatenate([own(z), of_own], axis=1, dtype=np.float32)
            standard[TOGETHER] = np.asarray
    around = None
    if means is not None and isinstance(z, np.ndarray):
        alone = scipy.sparse.diags_array((np.diff(means.indptr) == 0).astype(np.float32))
        around = Around(tables, labelled, (means + alone).tocsr())
    return Evidence(tables, standard, columns, parts or {}, around)


@dataclass(frozen=True, eq=False)
class Columns:
    """A table that is made of columns of nodes, in a basis of the labelled rows.

    Attributes:
        table: the rows of all nodes.
        prepare: what becomes of rows of features first.
        basis: what turns them into few columns.
        near: of means two hops away, those one hop away; None if rows are of nodes themselves.
    """

    table: Array
    prepare: Callable[[Any], Any]
    basis: Array
    near: Array | None

    @classmethod
    def of(
        cls,
        x: Any,
        prepare: Callable[[Any], Any],
        labelled: Array,
        size: float,
        means: Any = None,
    ) -> "Columns":
        """Makes the table; its rows have the mean length `size`.

        With `means`, the rows are means of means over neighbours. They are taken of few columns:
        the basis comes first.
        """
        x, count = prepare(x), min(len(labelled), MOST_ROWS)
        some = labelled[np.linspace(0, len(labelled) - 1, count).astype(int)]
        spanning = x[some] if means is None else (means[some] @ means) @ x
        inner = spanning @ spanning.T
        inner = np.asarray(inner.todense() if scipy.sparse.issparse(inner) else inner, np.float64)
        strength, directions = np.linalg.eigh((inner + inner.T) / 2)
        kept = np.argsort(-strength)[:MOST_COLUMNS]
        kept = kept[strength[kept] > 1e-6 * max(strength.max(), 1e-300)]
        basis = np.asarray(spanning.T @ (directions[:, kept] / np.sqrt(strength[kept])))
        table, near = np.asarray(x @ basis), None
        if means is not None:
            near = means @ table
            table = means @ near
        squares: Array = np.einsum("nk,nk->n", table, table, dtype=np.float64)
        scale = size / max(float(squares.mean()) ** 0.5, 1e-12)
        one_hop = None if near is None else (near * scale).astype(np.float32)
        return cls((table * scale).astype(np.float32), prepare, basis * scale, one_hop)

    def of_new(self, x: Array, neighbours: Sequence[Array]) -> Array:
        """Returns the rows of nodes that the graph does not have; see `Evidence.of_new`."""
        found: Array
        if self.near is None:
            found = np.asarray(self.prepare(x) @ self.basis, np.float32)
        else:
            found = np.zeros((len(x), self.near.shape[1]), np.float32)
            for row, some in enumerate(neighbours):
                found[row] = self.near[some].mean(axis=0) if len(some) else 0
        return found


def is_table(x: Any) -> bool:
    """Returns whether there are columns of nodes to look at."""
    return bool(isinstance(x, np.ndarray) or scipy.sparse.issparse(x)) and min(x.shape) > 0


def _one_scale(z: Array) -> Callable[[Array], Array]:
    """Returns what brings rows to mean 0 and one size, that of as many standardised columns."""
    some = np.asarray(z[:: max(1, len(z) // 20_000)], dtype=np.float64)
    mean = some.mean(axis=0)
    spread = float(np.square(some - mean).mean()) ** 0.5
    return lambda rows: (rows - mean) / max(spread, 1e-12)


def _unit_rows(x: Any) -> Any:
    if not scipy.sparse.issparse(x):
        return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    lengths = np.asarray(x.multiply(x).sum(axis=1)).ravel() ** 0.5
    return (scipy.sparse.diags_array(1 / np.maximum(lengths, 1e-12)) @ x).tocsr()


def _unit_columns(x: Any) -> Callable[[Any], Any]:
    """Returns what scales columns to one size; those that are no words have mean 0 then."""
    if not scipy.sparse.issparse(x):
        mean, size = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-12)
        return lambda rows: (rows - mean) / size
    first, squares = (np.asarray(one.mean(axis=0)).ravel() for one in (x, x.multiply(x)))
    scale = np.where(squares > 0, 1 / np.sqrt(np.maximum(squares - first**2, 1e-12)), 0)
    return lambda rows: (
        (rows @ scipy.sparse.diags_array(scale)).tocsr()
        if scipy.sparse.issparse(rows)
        else rows * scale
    )


def neighbour_means(graph: Any) -> Any:
    """Returns the sparse matrix that takes the mean over neighbours; None if there is no edge."""
    if not isinstance(graph, Graph) or not graph.is_plain or not graph.num_edges:
        return None
    relation = graph.only_relation
    degrees = np.diff(relation.indptr)
    shares = np.repeat(1 / np.maximum(degrees, 1), degrees).astype(np.float32)
    shape = (graph.num_nodes, graph.num_nodes)
    return scipy.sparse.csr_array((shares, relation.indices, relation.indptr), shape=shape)


def embedding_parts(recipe: Mapping[str, Any], num_features: int) -> dict[str, slice]:
    """Returns which columns of an embedding are of the node itself, its neighbours and farther.

    Hops that do not stand side by side are one part.
    """
    from graphcl.encoders.side_by_side import divide_columns

    names = ["dim", "layers", *(name for name in ENCODER_OPTIONS if name != "normalisation")]
    if any(recipe.get(name) is None for name in names):
        return {}
    own, _, widths = divide_columns(num_features, **{name: recipe[name] for name in names})
    dim = recipe["dim"]
    if not recipe["side_by_side"]:
        found = {ITSELF: slice(0, own), SURROUNDINGS: slice(own, dim)}
    else:
        end = own + widths[0] if recipe["layers"] > 1 else dim  # one hop is all there is
        found = {ITSELF: slice(0, own), NEAR: slice(own, end), FAR: slice(end, dim)}
    return {name: some for name, some in found.items() if some.stop > some.start}
