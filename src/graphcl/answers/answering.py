"""The model that answers, whichever was chosen: for nodes of a graph, and for nodes that it lacks.

It is what was learned of labels (`graphcl.answers.learning`), or a plain rival in its place
(`graphcl.answers.rivals`). `graphcl predict` and the service have their answers and their reasons
from here, so that both say the same of a node.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.answers.evidence import EMBEDDING, is_table, neighbour_means
from graphcl.answers.inputs import KnownLabels
from graphcl.answers.learning import Learned
from graphcl.answers.reasons import (
    MOST_EXPLAINED,
    Answering,
    ByLearned,
    ByRival,
    OwnColumns,
    Reason,
    column_means,
    explain,
    most_similar,
)
from graphcl.answers.rivals import Rival, plain_rivals
from graphcl.arrays import Array
from graphcl.errors import ParameterError, check_keys, option, require
from graphcl.evaluation.regression import LEVEL, half_width
from graphcl.settings import RIVALS, is_number

# What `Run.predict` hands on to `graphcl.predict`.
PREDICT_OPTIONS = (
    *("wanted", "precision", "cost", "shares", "using", "rivals", "why", "level", "label_kind"),
    "seed",
)


def rivals_of(known: KnownLabels, graph: Any, ids: Any, seed: int) -> list[Rival]:
    """Returns the plain rivals; none without columns."""
    x: Any = getattr(graph, "x", None)
    if not is_table(x):
        return []
    labelled = np.flatnonzero(known.known)
    means = neighbour_means(graph)
    near = None if means is None else means[labelled] @ x
    return plain_rivals(
        x[labelled], near, known.targets[labelled], kind=known.kind, seed=seed, names=ids[labelled]
    )


def check_rival(using: Any) -> None:
    """Refuses a name that no plain rival ever has, before any work is done.

    Raises:
        ParameterError: there is no such rival.
    """
    known = using is None or using in RIVALS
    require(known, "predict", option("using"), f"one of {', '.join(RIVALS)}", using)


def check_asked(asked: Mapping[str, Any]) -> None:
    """Refuses unknown arguments of `Run.predict`, and unknown rivals, before any work is done.

    Raises:
        ParameterError: an argument or a rival is unknown.
    """
    known = (*PREDICT_OPTIONS, "node_type")
    check_keys(asked, known, where="Run.predict", error=ParameterError, what="argument")
    check_rival(asked.get("using"))


def chosen_rival(rivals: Sequence[Rival], using: str | None) -> Rival | None:
    """Returns the rival that was chosen by its name; None if none was.

    Raises:
        ParameterError: there is no such rival.
    """
    rival = next((one for one in rivals if one.name == using), None)
    names = ", ".join(one.name for one in rivals) or "none: there are no columns"
    found = using is None or rival is not None
    require(found, "predict", option("using"), f"one of {names}", using)
    return rival


def share_factors(known: KnownLabels, shares: Mapping[Any, float] | None) -> Array | None:
    """Returns how many times as frequent each class is among all nodes as among labelled ones."""
    if shares is None:
        return None
    exclusive = known.kind == "classes"
    if not exclusive:
        wanted = "left out: there are no classes that exclude each other"
        require(False, "predict", option("shares"), wanted, shares)
    names = [str(name) for name in known.classes]
    shown = f"a positive share for each of {', '.join(names[:10])}"
    mapping = isinstance(shares, Mapping)
    require(mapping, "predict", option("shares"), f"a mapping of class to share: {shown}", shares)
    given = {str(name): share for name, share in shares.items()}
    positive = all(is_number(share) and share > 0 for share in given.values())
    complete = positive and set(given) == set(names) and len(given) == len(shares)
    require(complete, "predict", option("shares"), shown, dict(shares))
    there = known.targets.sum(axis=0) / known.known.sum()
    return np.asarray(np.array([given[name] for name in names]) / sum(given.values()) / there)


def reweighted(probability: Array, factor: Array | None) -> Array:
    """Returns probabilities for other shares of the classes."""
    if factor is None:
        return probability
    scaled = probability * factor
    return np.asarray(scaled / scaled.sum(axis=1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Answerer:
    """The model that answers.

    Answers are probabilities ``[rows, outputs]``; of a number, its value and the ends of its
    interval, ``[rows, 3]``.

    Attributes:
        learned: what was learned of labels.
        graph: has the columns of nodes, and their names; None if it cannot be had.
        ids: of all nodes.
        rival: the plain model that answers in place of what was learned; None if none was chosen.
        factor: how many times as frequent each class is as among labelled nodes; None is once.
        level: of a number: how often it is to be within its interval.
    """

    learned: Learned
    graph: Any
    ids: Any
    rival: Rival | None = None
    factor: Array | None = None
    level: float = LEVEL

    @property
    def held_out(self) -> Array:
        """Answers for labelled nodes by a model that has not seen them, before `factor`."""
        return self.learned.probe.held_out if self.rival is None else self.rival.held_out

    @cached_property
    def _columns(self) -> OwnColumns | None:
        return OwnColumns.of_nodes(self.graph, self.learned.known)

    @cached_property
    def _means(self) -> Array:
        """Own columns of the average node; none if there are no columns."""
        x: Any = getattr(self.graph, "x", None)
        return column_means(x) if is_table(x) else np.zeros(0)

    @cached_property
    def _neighbour_means(self) -> Any:
        return neighbour_means(self.graph)

    @cached_property
    def _average_near(self) -> Array | None:
        """The means of the average node's neighbours' columns; None if nobody looks at them."""
        if self.rival is None or not self.rival.neighbours:
            return None
        share = np.asarray(self._neighbour_means.mean(axis=0)).reshape(-1)
        return np.asarray(share @ self.graph.x)

    def _near(self, rows: Array) -> Any:
        """Returns means of neighbours' columns; None if the rival does not look at them."""
        if self.rival is None or not self.rival.neighbours:
            return None
        return self._neighbour_means[rows] @ self.graph.x

    @cached_property
    def _half_width(self) -> float:
        """Of a number by a rival: half of its interval; not a number if nothing tells."""
        truth = self.learned.known.targets[self.learned.labelled]
        missed = np.abs(truth - self.held_out)
        missed = missed[~np.isnan(missed)]
        return float(half_width(missed, self.level)) if len(missed) else np.nan

    def of_rows(self, rows: Array) -> Array:
        """Returns answers for nodes of the graph; labelled ones by a model that has not seen them.

        Args:
            rows: their numbers.
        """
        if self.rival is None:
            answers = self.learned.of_rows(rows)
        else:
            answers = self._by_rival(self.rival, self.graph.x[rows], self._near(rows))
        return reweighted(self.learned.with_held_out(answers, rows, self.held_out), self.factor)

    def of_new(self, z: Array, x: Array, neighbours: Sequence[Array]) -> Array:
        """Returns answers for nodes that the graph does not have.

        Args:
            z: their embeddings.
            x: their features.
            neighbours: the rows of the neighbours of each.
        """
        if self.rival is None:
            return reweighted(self.learned.of_new(z, x, neighbours), self.factor)
        own, near = self._columns_of_new(x, neighbours)
        return reweighted(self._by_rival(self.rival, own, near), self.factor)

    def _by_rival(self, rival: Rival, x: Any, near: Any) -> Array:
        found = rival.predict(x, near)
        if found.ndim == 2:
            return found
        half = self._half_width
        return np.stack([found, found - half, found + half], axis=1)

    def _columns_of_new(self, x: Array, neighbours: Sequence[Array]) -> tuple[Any, Any]:
        """Returns columns of new nodes in the form of the graph's, and means over neighbours."""
        assert self.rival is not None
        sparse = scipy.sparse.issparse(self.graph.x)
        own = scipy.sparse.csr_array(x) if sparse else x
        if not self.rival.neighbours:
            return own, None
        counts = np.array([len(some) for some in neighbours])
        ends = np.concatenate([np.zeros(0, np.int64), *neighbours]).astype(np.int64)
        shares = np.repeat(1 / np.maximum(counts, 1), counts).astype(np.float32)
        starts = np.concatenate([[0], counts.cumsum()])
        shape = (len(counts), self.graph.x.shape[0])
        return own, scipy.sparse.csr_array((shares, ends, starts), shape=shape) @ self.graph.x

    def reasons(self, rows: Array, places: Array) -> list[Reason]:
        """Returns the reasons of nodes of the graph; none if the model that answers has none.

        Args:
            rows: the nodes; those beyond `MOST_EXPLAINED` are left out.
            places: the output that each one's reasons are towards.
        """
        rows, places = rows[:MOST_EXPLAINED], places[:MOST_EXPLAINED]
        if self.rival is not None:
            if not self.rival.looks:
                return []
            return self._reasons_of_rival(self.graph.x[rows], self._near(rows), places)
        like = most_similar(
            self.learned, self.learned.evidence.tables[EMBEDDING][rows], self.ids, rows
        )
        seen = self.learned.seen(rows)
        return self._explained(ByLearned(self.learned, seen, self._means), places, like)

    def reasons_of_new(
        self, z: Array, x: Array, neighbours: Sequence[Array], places: Array
    ) -> list[Reason]:
        """Returns the reasons of nodes that the graph does not have; see `of_new`, `reasons`."""
        if self.rival is not None:
            if not self.rival.looks:
                return []
            return self._reasons_of_rival(*self._columns_of_new(x, neighbours), places)
        seen = self.learned.seen_new(z, x, neighbours)
        like = most_similar(self.learned, z, self.ids)
        return self._explained(ByLearned(self.learned, seen, self._means), places, like)

    def _reasons_of_rival(self, x: Any, near: Any, places: Array) -> list[Reason]:
        assert self.rival is not None
        by_rival = ByRival(self.rival, x, near, self._means, self._average_near)
        return self._explained(by_rival, places)

    def _explained(
        self,
        answering: Answering,
        places: Array,
        like: Sequence[tuple[tuple[Any, Any], ...]] = (),
    ) -> list[Reason]:
        return explain(
            answering,
            places,
            self.learned.known,
            columns=self._columns,
            like=like,
            adjust=lambda answers: reweighted(answers, self.factor),
        )
