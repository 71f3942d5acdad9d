"""Why a node is predicted as it is: what it rests on, which columns, and which labelled nodes.

What a prediction rests on is found by leaving a part out: own columns, neighbours, or their
neighbours are replaced by those of the average node, and the answer changes by so much.

Columns are named by a ridge regression of the label on the node's own columns, because embeddings
do not name theirs. A column's effect is its weight times how far the node is from the average.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

from graphcl.answers.evidence import (
    EMBEDDING,
    FAR,
    ITSELF,
    NEAR,
    NEIGHBOURS,
    OWN_SCALED,
    SURROUNDINGS,
)
from graphcl.answers.learning import Learned
from graphcl.arrays import Array
from graphcl.evaluation.unsupervised import unit_rows

MOST_EXPLAINED = 10_000  # nodes; the first ones of a ranking
NAMED = 3  # columns, and labelled nodes
_BLOCK = 1024


@dataclass(frozen=True)
class Reason:
    """Why a node is predicted as it is.

    Attributes:
        parts: by how much the answer would change without own columns, neighbours, and their
            neighbours: above 0, they speak for it.
        columns: own columns that say most, with their effect.
        like: the labelled nodes whose embeddings are most similar, with their labels.
    """

    parts: dict[str, float]
    columns: tuple[tuple[str, float], ...]
    like: tuple[tuple[Any, Any], ...]

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {change:+.2g}" for name, change in self.parts.items())
        columns = ", ".join(f"{name} {'+' if effect > 0 else '−'}" for name, effect in self.columns)
        like = ", ".join(f"{name} ({label})" for name, label in self.like)
        said = [parts, columns and f"columns: {columns}", like and f"like {like}"]
        return "; ".join(one for one in said if one)


def explain(
    learned: Learned, rows: Array, places: Array, *, graph: Any, ids: Any, rests: bool = True
) -> list[Reason]:
    """Returns the reasons of some nodes.

    Args:
        learned: what predicts them.
        rows: their numbers; those beyond `MOST_EXPLAINED` are left out.
        places: the class or label of each that is explained; 0 of a number.
        graph: has their columns, and the names of these; None if it cannot be had.
        ids: of all nodes.
        rests: say what the answers rest on; not if a plain rival gave them.
    """
    rows, places = rows[:MOST_EXPLAINED], places[:MOST_EXPLAINED]
    each, tables = np.arange(len(rows)), learned.evidence.tables
    answer = learned.of_rows(rows)[each, places]
    there = _parts(learned) if rests else []
    without = {part: learned.of_rows(rows, without=part)[each, places] for part in there}
    columns, labels = _columns(learned, rows, places, graph), _in_words(learned)
    unit = unit_rows(np.asarray(tables[EMBEDDING][learned.labelled]))
    found = []
    for start in range(0, len(rows), _BLOCK):
        some = rows[start : start + _BLOCK]
        cosine = unit_rows(np.asarray(tables[EMBEDDING][some])) @ unit.T
        cosine[some[:, None] == learned.labelled] = -np.inf  # a node is not like itself
        nearest = np.argsort(-cosine, axis=1, kind="stable")[:, : min(NAMED, len(unit) - 1)]
        for number, like in enumerate(nearest, start=start):
            alike = tuple((ids[learned.labelled[one]], labels[one]) for one in like)
            parts = {name: float(answer[number] - one[number]) for name, one in without.items()}
            found.append(Reason(parts, columns[number], alike))
    return found


def _in_words(learned: Learned) -> list[str]:
    """Returns what each labelled node is."""
    targets, classes = learned.known.targets[learned.labelled], learned.known.classes
    if learned.known.number:
        return [f"{one:.4g}" for one in targets.tolist()]
    return [", ".join(str(classes[one]) for one in np.flatnonzero(row)) for row in targets]


def _parts(learned: Learned) -> list[str]:
    """Returns the parts that predictions look at."""
    evidence, looked_at = learned.evidence, set(learned.evidence.parts)
    looked_at |= {ITSELF} if evidence.columns else set()
    if SURROUNDINGS not in looked_at:
        looked_at |= {NEAR} if learned.smoothing is not None else set()
        looked_at |= {FAR} if NEIGHBOURS in evidence.columns else set()
    return [part for part in (ITSELF, NEAR, FAR, SURROUNDINGS) if part in looked_at]


def _columns(
    learned: Learned, rows: Array, places: Array, graph: Any
) -> list[tuple[tuple[str, float], ...]]:
    """Returns the own columns of each row that say most, with their effects."""
    made = learned.evidence.columns.get(OWN_SCALED)
    if made is None or graph is None:
        return [()] * len(rows)
    table, targets = made.table[learned.labelled].astype(np.float64), learned.known.targets
    own = targets[learned.labelled].astype(np.float64).reshape(len(table), -1)
    centred, aim = table - table.mean(axis=0), own - own.mean(axis=0)
    inner = centred.T @ centred
    inner[np.diag_indices_from(inner)] += max(float(np.trace(inner)) / len(table), 1e-12)
    weight = made.basis @ np.linalg.solve(inner, centred.T @ aim)
    prepared = graph.preparation
    names = list(prepared.features) if prepared is not None else []
    names += [f"feature {place}" for place in range(len(names), weight.shape[0])]
    found: list[tuple[tuple[str, float], ...]] = []
    for row, place in zip(rows.tolist(), places.tolist(), strict=True):
        cells = made.prepare(graph.x[[row]])
        sparse = scipy.sparse.issparse(cells)
        effect = np.asarray(cells.todense() if sparse else cells).ravel() * weight[:, place]
        most = np.argsort(-np.abs(effect), kind="stable")[:NAMED]
        found.append(tuple((names[one], float(effect[one])) for one in most if effect[one]))
    return found
