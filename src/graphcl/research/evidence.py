"""What a trial shows without labels, and by what it is ranked among others.

Trials also embed damaged versions of the graph, which lack some links and some values of features.
The versions are the same for all trials, so what these make of them can be compared.

Good embeddings are rich: they use many directions. They know their node: its features can be told
from few examples. They are steady: little changes where a few links and values are missing. Each of
the three alone is easily fooled, by noise, by a copy of the features, by coarse clusters; no trial
that is fooled by one comes first in the others. So ranks are averaged.
What an embedding knows is learned by ridge regression from some nodes, and predicted for the
others. Labels are targets of that kind which nobody has yet.

`python -m benchmarks.choosing` compared this with other criteria, and docs/choosing.md shows them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse
from scipy.stats import rankdata

from graphcl.errors import GraphError
from graphcl.evaluation.unsupervised import effective_rank
from graphcl.graphs.graph import Graph
from graphcl.research.damage import hidden_features, missing_links
from graphcl.seeding import derive

SAMPLE = 2_000  # nodes that are looked at, at most
HIDDEN = 0.2  # share of the links, and of the values of features, that a version lacks
LEAST_NODES = 20
COLUMNS = 4_096  # of the features that are looked at, at most
VERSIONS = 3  # damaged versions of the graph that a trial embeds
STRENGTHS = tuple(10.0**power for power in range(-3, 5))
COMPONENTS = 32
FEW = 0.1  # share of the nodes that is learned from
DRAWS = 3
BLIND = 1e-6  # of the largest singular value: what is smaller is rounding
MEASURES = ("effective_rank", "own", "stability")

Array = npt.NDArray[Any]
Embed = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Evidence:
    """A graph without labels, and what of it trials are compared by.

    Attributes:
        graph: what trials train on.
        nodes: the nodes that are looked at, ascending, ``[S]``.
        seed: what the damaged versions are drawn by.
        count: how many damaged versions there are.
    """

    graph: Graph
    nodes: Array
    seed: int
    count: int

    @classmethod
    def of(cls, graph: Graph, *, seed: int, sample: int = SAMPLE, versions: int = 0) -> "Evidence":
        """Draws nodes; a graph that is mapped from a store is checked first.

        Raises:
            GraphError: the graph has too few nodes.
        """
        graph.check()
        if graph.num_nodes < LEAST_NODES:
            raise GraphError(
                f"{graph.name}: has {graph.num_nodes} nodes; choosing without labels needs "
                f"{LEAST_NODES}"
            )
        bare = graph.replace(y=None)
        random = np.random.default_rng(derive(seed, "evidence") % 2**63)
        nodes = sampled_nodes(bare, sample, random)
        return cls(bare, nodes, seed, versions)

    def version(self, number: int) -> Graph:
        """Returns a damaged version of the graph.

        It is drawn anew each time, always the same: copies of a large graph need much memory.
        """
        random = np.random.default_rng(derive(self.seed, "version", number) % 2**63)
        return hidden_features(missing_links(self.graph, HIDDEN, random), HIDDEN, random)

    def observe(self, embed: Embed) -> npt.NDArray[np.float32]:
        """Returns the embeddings of the nodes, ``[1 + count, S, dim]``.

        The first are those in the graph, the others those in its versions.
        """
        shown = [np.asarray(embed(self.graph))[self.nodes]]
        shown += [np.asarray(embed(self.version(n)))[self.nodes] for n in range(self.count)]
        return np.stack(shown).astype(np.float32)

    @cached_property
    def own(self) -> Array:
        """The principal components of the nodes' features, ``[S, components]``."""
        return principal_targets(self.features())

    def features(self, nodes: Array | None = None) -> Array:
        """Returns the features of some nodes, by default `nodes`, dense; at most `COLUMNS`."""
        x: Any = self.graph.x
        # First: the table may be mapped, and too large to copy.
        rows = x[self.nodes if nodes is None else nodes]
        if rows.shape[1] > COLUMNS:
            drawn = np.random.default_rng(0).choice(rows.shape[1], COLUMNS, replace=False)
            rows = rows[:, np.sort(drawn)]
        dense = rows.toarray() if scipy.sparse.issparse(rows) else rows
        return np.asarray(dense, dtype=np.float64)


def sampled_nodes(graph: Graph, count: int, random: np.random.Generator) -> Array:
    """Returns all nodes, or about `count`: half of them drawn, and a neighbour of each of these.

    Nodes that are all drawn one by one would have hardly a link among them in a large graph.
    """
    if graph.num_nodes <= count:
        return np.arange(graph.num_nodes)
    drawn = np.sort(random.choice(graph.num_nodes, count // 2, replace=False))
    start, degree = np.asarray(graph.indptr[drawn]), np.diff(graph.indptr)[drawn]
    linked = degree > 0
    place = start[linked] + (random.random(int(linked.sum())) * degree[linked]).astype(np.int64)
    return np.unique(np.concatenate([drawn, np.asarray(graph.indices)[place]]).astype(np.int64))


def measure(evidence: Evidence, shown: Array) -> dict[str, float]:
    """Returns what a trial's embeddings, of `Evidence.observe`, show.

    - ``effective_rank``: how many directions they use.
    - ``own``: how well few examples suffice to tell the features of other nodes: a mean R².
    - ``stability``: how alike they are in the graph and in its damaged versions: a mean linear CKA.
    """
    z, *versions = shown
    return {
        "effective_rank": effective_rank(z),
        "own": few_shot_recovery(z, evidence.own),
        "stability": fmean(linear_cka(z, version) for version in versions),
    }


def merits(measures: Sequence[Mapping[str, float]]) -> list[float]:
    """Returns the merit of each trial among the others: its mean rank over `MEASURES`.

    It is between 0 and 1; the highest is picked. What was good on other graphs decides what is
    tried, and has no say here.
    """
    ranks = [rankdata([one[name] for one in measures]) for name in MEASURES]
    return [fmean(map(float, each)) / len(measures) for each in zip(*ranks, strict=True)]


def principal_targets(x: Any, count: int = COMPONENTS) -> Array:
    """Returns the first principal components of a table, each with variance 1, ``[N, count]``.

    Columns are first standardised; fewer components are returned if the table has fewer. A table
    without any variance gives none.
    """
    x = np.asarray(x, np.float64)
    deviation = x.std(axis=0)
    x = (x - x.mean(axis=0))[:, deviation > 0] / deviation[deviation > 0]
    if x.shape[1] == 0 or len(x) < 2:
        return np.empty((len(x), 0))
    products = x @ x.T if len(x) <= x.shape[1] else x.T @ x
    values, vectors = np.linalg.eigh(products)
    kept = np.argsort(values)[::-1][:count]
    kept = kept[values[kept] > BLIND * values.max()]
    scores = vectors[:, kept] if len(x) <= x.shape[1] else x @ vectors[:, kept]
    found: Array = (scores - scores.mean(axis=0)) / scores.std(axis=0)
    return found


def few_shot_recovery(z: Any, targets: Any, *, seed: int = 0) -> float:
    r"""Returns how well `targets` are predicted from few nodes' embeddings: the mean :math:`R^2`.

    A tenth of the nodes is drawn, a ridge regression fitted to it, and its :math:`R^2` measured on
    the others; a column worse than its mean counts 0. The penalty is the best of `STRENGTHS` by
    leave-one-out error on the tenth. The mean is over columns and `DRAWS` draws.

    Args:
        z: embeddings ``[N, dim]``.
        targets: what to predict, ``[N, columns]``.
        seed: decides the draws.
    """
    z, targets = np.asarray(z, np.float64), np.asarray(targets, np.float64)
    if z.ndim != 2 or targets.ndim != 2 or len(z) != len(targets):
        raise GraphError(f"recovery: embeddings {z.shape} for targets {targets.shape}")
    if targets.shape[1] == 0:
        return 0.0
    random = np.random.default_rng(seed)
    count = min(len(z) - 1, max(10, round(FEW * len(z))))
    scores = []
    for _ in range(DRAWS):
        order = random.permutation(len(z))
        few, rest = order[:count], order[count:]
        found = _ridge(z[few], targets[few], z[rest])
        error = ((targets[rest] - found) ** 2).sum(axis=0)
        total = ((targets[rest] - targets[rest].mean(axis=0)) ** 2).sum(axis=0)
        kept = total > 0
        scores.append(np.maximum(0, 1 - error[kept] / total[kept]).mean() if kept.any() else 0.0)
    return float(np.mean(scores))


def _ridge(z: Array, y: Array, new: Array) -> Array:
    """Returns predictions for new rows; columns of `z` are standardised by its own rows."""
    deviation = z.std(axis=0)
    scale = np.where(deviation > BLIND * max(float(deviation.max(initial=0)), BLIND), deviation, 1)
    mean, middle = z.mean(axis=0), y.mean(axis=0)
    z, new, y = (z - mean) / scale, (new - mean) / scale, y - middle
    left, singular, right = np.linalg.svd(z, full_matrices=False)
    inner = left.T @ y
    best, chosen = np.inf, STRENGTHS[-1]
    for strength in STRENGTHS:
        shrunk = singular**2 / (singular**2 + strength)
        leverage = (left**2 * shrunk).sum(axis=1) + 1 / len(z)
        left_out = (y - left @ (shrunk[:, None] * inner)) / np.maximum(1 - leverage, BLIND)[:, None]
        error = float((left_out**2).sum())
        if error < best:
            best, chosen = error, strength
    weights = right.T @ ((singular / (singular**2 + chosen))[:, None] * inner)
    predicted: Array = new @ weights + middle
    return predicted


def linear_cka(z_1: Any, z_2: Any) -> float:
    r"""Returns the linear centred kernel alignment of two sets of embeddings, from 0 to 1.

    It is :math:`\|Z_1^\top Z_2\|_F^2 / (\|Z_1^\top Z_1\|_F \|Z_2^\top Z_2\|_F)` for centred columns
    (Kornblith et al., 2019). It is 1 if the two differ by a rotation and a factor alone, and 0 if
    one of them is constant. The widths may differ.
    """
    first, second = (_centred(z) for z in alike("linear CKA", (z_1, z_2)))
    sizes = float(np.linalg.norm(first.T @ first) * np.linalg.norm(second.T @ second))
    return float(np.linalg.norm(first.T @ second) ** 2 / sizes) if sizes > 0 else 0.0


def _centred(z: Array) -> Array:
    z = np.asarray(z, np.float64)
    z = z / max(float(np.abs(z).max(initial=0)), np.finfo(np.float64).tiny)
    centred: Array = z - z.mean(axis=0)
    return centred


def alike(who: str, each: Sequence[Any]) -> list[Array]:
    """Returns embeddings of the same nodes as arrays; refuses those that do not fit each other."""
    arrays = [np.asarray(z) for z in each]
    if any(z.ndim != 2 or len(z) != len(arrays[0]) for z in arrays) or len(arrays[0]) < 2:
        raise GraphError(f"{who}: embeddings of shapes {', '.join(str(z.shape) for z in arrays)}")
    return arrays
