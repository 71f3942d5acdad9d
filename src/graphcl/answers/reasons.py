"""Why a node is predicted as it is: reasons of the model that answered, and of no other.

There is one definition for every model and for everything that it looks at. A part of what is known
of a node (its own columns, its neighbours, a single column) is replaced by that of the average
node, and the model answers again. The effect is the answer minus that second answer, so above 0 it
speaks for the class that reasons are towards, below 0 against it. That class is the wanted one of
two, and the predicted one of more. Reasons of a number are towards a higher value.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import scipy.sparse

from graphcl.answers.evidence import (
    EMBEDDING,
    FAR,
    ITSELF,
    NEAR,
    NEIGHBOURS,
    SURROUNDINGS,
    is_table,
)
from graphcl.answers.inputs import KnownLabels
from graphcl.answers.learning import Learned, Seen
from graphcl.answers.rivals import Rival
from graphcl.arrays import Array, blocks
from graphcl.evaluation.unsupervised import unit_rows
from graphcl.graphs.graph import Graph
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.structural import FEATURE_NAMES
from graphcl.tabular.preparation import TAGS

MOST_EXPLAINED = 10_000  # nodes; the first ones of a ranking
NAMED = 3  # columns, and labelled nodes
TRIED = 16  # columns of a node that are replaced; of more, those that seem to tell most
LEAST = 1e-4  # an effect that is said, of a probability or of a number's deviation
HIGHER, PREDICTED = "a higher value", "the predicted class"
_BLOCK = 1024  # nodes that are compared with the labelled ones at a time
_ROWS = 1 << 12  # rows of replaced columns that are answered at a time


@dataclass(frozen=True)
class Reason:
    """Why a node is predicted as it is.

    Attributes:
        towards: the class that effects above 0 speak for; or ``a higher value``.
        parts: the effects of own columns, neighbours, and their neighbours.
        columns: own columns with the largest effects, the largest first.
        like: the labelled nodes whose embeddings are most similar, with their labels.
    """

    towards: str
    parts: dict[str, float]
    columns: tuple[tuple[str, float], ...]
    like: tuple[tuple[Any, Any], ...] = ()

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {effect:+.2g}" for name, effect in self.parts.items())
        columns = ", ".join(f"{name} {effect:+.2g}" for name, effect in self.columns)
        like = ", ".join(f"{name} ({label})" for name, label in self.like)
        said = [parts, columns and f"columns: {columns}", like and f"like {like}"]
        return f"towards {self.towards}: " + "; ".join(one for one in said if one)


class Answering(Protocol):
    """A model that has answered for some nodes, and can be asked again about them.

    Attributes:
        parts: of what is known of a node, what it looks at.
        x: own columns of the nodes that it looks at; None if it looks at none.
        means: those of the average node.
    """

    parts: list[str]
    x: Any
    means: Array

    def answers(self, places: Array, *, without: str | None = None, x: Any = None) -> Array:
        """Returns answers for some of the nodes, ``[places, outputs]``.

        Args:
            places: which.
            without: a part that is that of the average node.
            x: own columns in place of theirs.
        """


class ByLearned:
    """What was learned of labels, as it answered for some nodes.

    Args:
        learned: the model.
        seen: what it looked at.
        means: own columns of the average node.
    """

    def __init__(self, learned: Learned, seen: Seen, means: Array) -> None:
        self._learned, self._seen = learned, seen
        evidence = learned.evidence
        looked_at = set(evidence.parts)
        if evidence.columns:
            looked_at.add(ITSELF)
        if SURROUNDINGS not in looked_at:
            if learned.smoothing is not None:
                looked_at.add(NEAR)
            if NEIGHBOURS in evidence.columns:
                looked_at.add(FAR)
        self.parts = [part for part in (ITSELF, NEAR, FAR, SURROUNDINGS) if part in looked_at]
        self.means = means
        self.x = seen.x if evidence.columns else None

    def answers(self, places: Array, *, without: str | None = None, x: Any = None) -> Array:
        """Returns answers again; see `Answering`."""
        return self._learned.answer(self._seen.take(places), without=without, x=x)


class ByRival:
    """A plain rival, as it answered for some nodes.

    Args:
        rival: the model.
        x: columns of the nodes.
        near: means of their neighbours' columns; None if the model does not look at them.
        means: own columns of the average node.
        average_near: the means of its neighbours' columns; None likewise.
    """

    def __init__(
        self, rival: Rival, x: Any, near: Any, means: Array, average_near: Array | None
    ) -> None:
        self._rival, self.x, self._near, self.means = rival, x, near, means
        self._average_near = average_near
        self.parts = [ITSELF] if average_near is None else [ITSELF, NEAR]

    def answers(self, places: Array, *, without: str | None = None, x: Any = None) -> Array:
        """Returns answers again; see `Answering`."""
        own = self.x[places] if x is None else x
        near = None if self._near is None else self._near[places]
        if without == ITSELF:
            own = _repeated(self.means, own)
        if without == NEAR and self._average_near is not None:
            near = _repeated(self._average_near, near)
        found = self._rival.predict(own, near)
        return found if found.ndim == 2 else found[:, None]


def column_means(x: Any) -> Array:
    """Returns the mean of each column, dense or sparse."""
    return np.asarray(x.mean(axis=0), np.float64).reshape(-1)


def _repeated(row: Array, like: Any) -> Any:
    """Returns as many equal rows as a table has, dense or sparse as it is."""
    if scipy.sparse.issparse(like):
        ones = scipy.sparse.csr_array(np.ones((like.shape[0], 1)))
        return (ones @ scipy.sparse.csr_array(row[None])).tocsr()
    return np.tile(row.astype(like.dtype), (len(like), 1))


@dataclass(frozen=True, eq=False)
class OwnColumns:
    """The columns of a node as its owner knows them.

    Attributes:
        names: of the columns.
        features: the numbers of the features that each became.
        tells: of each feature, how its values go with each output among the labelled nodes,
            ``[features, outputs]``; it decides only which of many columns are tried.
    """

    names: list[str]
    features: list[Array]
    tells: Array

    @classmethod
    def of_nodes(cls, nodes: Any, known: KnownLabels) -> "OwnColumns | None":
        """Returns the columns of a graph's nodes, or those of a type; None if there are none."""
        x: Any = getattr(nodes, "x", None)
        if not is_table(x):
            return None
        names, features = column_groups(nodes)
        labelled = np.flatnonzero(known.known)
        targets = known.targets[labelled].reshape(len(labelled), -1).astype(np.float64)
        rows, centred = x[labelled], targets - targets.mean(axis=0)
        squares = column_means(rows * rows if not scipy.sparse.issparse(rows) else rows.power(2))
        variance = np.maximum(squares - column_means(rows) ** 2, 1e-12)
        tells = np.abs(rows.T @ centred) / len(labelled) / variance[:, None]
        return cls(names, features, tells)

    def tried(self, away: Any, places: Array) -> list[Array]:
        """Returns the columns that are tried for each node: all, or those that seem to tell most.

        Args:
            away: how far each node is from the average, ``[nodes, features]``.
            places: the output that is explained for each.
        """
        if len(self.names) <= TRIED:
            return [np.arange(len(self.names))] * len(places)
        column = np.empty(len(self.tells), np.int64)
        for number, some in enumerate(self.features):
            column[some] = number
        found = []
        for row, place in enumerate(places.tolist()):
            told = np.abs(away[row]) * self.tells[:, place]
            score = np.bincount(column, told, minlength=len(self.names))
            found.append(np.argsort(-score, kind="stable")[:TRIED])
        return found


def column_groups(nodes: Graph | Nodes) -> tuple[list[str], list[Array]]:
    """Returns the columns of a table of nodes, and which features each became.

    A tag is a column of its own, and so is a feature that no table's column became.
    """
    names, features, first = list[str](), list[Array](), 0
    prepared, width = nodes.preparation, nodes.num_features
    for one in (*prepared.columns, *prepared.beside) if prepared is not None else ():
        places = np.arange(first, first + len(one.features))
        if one.kind == TAGS:
            names += one.features
            features += [places[[at]] for at in range(len(places))]
        else:
            names.append(one.name)
            features.append(places)
        first += len(places)
    rest = range(first, width)
    if prepared is not None and len(rest) == len(FEATURE_NAMES):
        names += FEATURE_NAMES
    else:
        names += [f"feature {place}" for place in rest]
    features += [np.array([place]) for place in rest]
    return names, features


def explain(
    answering: Answering,
    places: Array,
    known: KnownLabels,
    *,
    columns: OwnColumns | None,
    like: Sequence[tuple[tuple[Any, Any], ...]] = (),
    adjust: Callable[[Array], Array] = lambda answers: answers,
) -> list[Reason]:
    """Returns the reasons of some nodes.

    Args:
        answering: the model that answered for these nodes.
        places: for each of them, the class or label that its reasons are towards; 0 of a number.
        known: the labels.
        columns: of the nodes; None if nothing is known of them.
        like: of each node, labelled ones that are similar; empty leaves them out.
        adjust: what is done to the model's answers before they are shown.
    """
    each = np.arange(len(places))

    def ask(rows: Array, **changed: Any) -> Array:
        found: Array = adjust(answering.answers(rows, **changed))
        return found[np.arange(len(rows)), places[rows]].astype(np.float64)

    answer = ask(each)
    effects = {part: answer - ask(each, without=part) for part in answering.parts}
    floor = LEAST
    if known.number:
        floor *= max(float(np.std(known.targets[known.known])), 1e-12)
    named: list[tuple[tuple[str, float], ...]] = [()] * len(places)
    if columns is not None and answering.x is not None:
        named = _column_effects(answering, columns, places, answer, ask, floor)
    return [
        Reason(
            HIGHER if known.number else str(known.classes[place]),
            {part: float(effect[row]) for part, effect in effects.items()},
            named[row],
            like[row] if len(like) else (),
        )
        for row, place in enumerate(places.tolist())
    ]


def _column_effects(
    answering: Answering,
    columns: OwnColumns,
    places: Array,
    answer: Array,
    ask: Callable[..., Array],
    floor: float,
) -> list[tuple[tuple[str, float], ...]]:
    """Returns the columns of each node with the largest effects."""
    found = []
    for block in blocks(max(1, len(places)), _ROWS // TRIED):
        rows = np.arange(len(places))[block]
        x = answering.x[rows]
        dense = x.toarray() if scipy.sparse.issparse(x) else x
        away = dense - answering.means
        tried = columns.tried(away, places[rows])
        nodes = np.repeat(np.arange(len(rows)), [len(some) for some in tried])
        cells = [columns.features[one] for some in tried for one in some.tolist()]
        # One row for each node and column, in which that column is the average node's.
        row_of_cell = np.repeat(np.arange(len(cells)), [len(some) for some in cells])
        feature = np.concatenate(cells) if cells else np.zeros(0, np.int64)
        replaced = _without_cells(x[nodes], row_of_cell, feature, away[nodes[row_of_cell], feature])
        effects = answer[rows][nodes] - ask(rows[nodes], x=replaced)
        for row, some in enumerate(tried):
            own = effects[nodes == row]
            most = np.argsort(-np.abs(own), kind="stable")[:NAMED]
            found.append(
                tuple(
                    (columns.names[some[one]], float(own[one]))
                    for one in most.tolist()
                    if abs(own[one]) >= floor
                )
            )
    return found


def _without_cells(x: Any, rows: Array, features: Array, away: Array) -> Any:
    """Returns rows in which some cells are `away` less, dense or sparse as they are."""
    if scipy.sparse.issparse(x):
        less = scipy.sparse.coo_array((away, (rows, features)), shape=x.shape)
        return (x - less).tocsr().astype(np.float32)
    changed = np.array(x, np.float32)
    changed[rows, features] -= away.astype(np.float32)
    return changed


def towards(known: KnownLabels, answers: Array, wanted: Any = None) -> tuple[str, Array]:
    """Returns what reasons are towards, in words, and the place of that output for each node.

    Args:
        known: the labels.
        answers: of the nodes, ``[nodes, outputs]``.
        wanted: of two classes: the name of the one that is looked for; None is the rarer.
    """
    if known.number:
        return HIGHER, np.zeros(len(answers), np.int64)
    if known.is_binary:
        place = known.wanted(wanted)
        return str(known.classes[place]), np.full(len(answers), place)
    return PREDICTED, answers.argmax(axis=1)


def most_similar(
    learned: Learned, z: Array, ids: Any, rows: Array | None = None
) -> list[tuple[tuple[Any, Any], ...]]:
    """Returns for each node the labelled nodes with the most similar embeddings, and their labels.

    Args:
        learned: has the labelled nodes.
        z: embeddings.
        ids: of all nodes of the graph.
        rows: the nodes that they are of; None for new ones.
    """
    labels, found = _in_words(learned), []
    unit = unit_rows(np.asarray(learned.evidence.tables[EMBEDDING][learned.labelled]))
    most = min(NAMED, len(unit) if rows is None else len(unit) - 1)
    for block in blocks(max(1, len(z)), _BLOCK):
        cosine = unit_rows(np.asarray(z[block])) @ unit.T
        if rows is not None:
            cosine[rows[block][:, None] == learned.labelled] = -np.inf  # a node is not like itself
        nearest = np.argsort(-cosine, axis=1, kind="stable")[:, :most]
        found += [
            tuple((ids[learned.labelled[at]], labels[at]) for at in one.tolist()) for one in nearest
        ]
    return found


def _in_words(learned: Learned) -> list[str]:
    """Returns what each labelled node is."""
    targets, classes = learned.known.targets[learned.labelled], learned.known.classes
    if learned.known.number:
        return [f"{one:.4g}" for one in targets.tolist()]
    return [", ".join(str(classes[one]) for one in np.flatnonzero(row)) for row in targets]
