"""What the page knows of each node: columns to show, to sort and to colour by, and who comes first.

Columns are the predictions that the run keeps, with their reasons if `graphcl predict` gave some,
groups, labels, and the user's own. Nothing is predicted here. A run may come from anybody: a table
that is not one of predictions is none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphcl.arrays import Array
from graphcl.graphs.nodes import Nodes
from graphcl.runs.nodes import SPLITS
from graphcl.tabular.originals import FEATURES, FLAGS, LABEL, Original
from graphcl.tabular.preparation import CATEGORY, NUMBER, TEXT

SINGLE_FEATURES = 24  # features that are columns of their own; of more, a node's largest are named
LARGEST = 5
MOST_TEXT = 160  # characters of a cell

DAMAGED = (KeyError, TypeError, ValueError, AttributeError, IndexError)  # or of another version


@dataclass(frozen=True, eq=False)
class Ranking:
    """Predicted nodes as a list to act on: the highest risk, value or certainty first.

    Attributes:
        rows: their row numbers, in this order.
        columns: what is predicted of them; the first ranks them, and other nodes have none.
    """

    rows: Array
    columns: tuple[Original, ...]


def read_ranking(
    table: Mapping[str, Sequence[Any]], about: Mapping[str, Any], ids: Sequence[Any]
) -> Ranking | None:
    """Returns the ranking in a kept table; None if it is empty, or not of these nodes.

    Args:
        table: columns ``id``, ``label``, ``probability``, ``p:CLASS`` for each class, ``value``,
            ``low``, ``high`` and ``why``, as far as they are there.
        about: its summary.
        ids: of all nodes, in order.
    """
    try:
        place = {str(name): row for row, name in enumerate(ids)}
        rows = np.array([place.get(str(name), -1) for name in table["id"]], np.int64)
        known = np.flatnonzero(rows >= 0)
        columns = []
        for key, name, kind, unit in _predicted(table, about):
            values: Array = np.full(len(ids), np.nan if kind == NUMBER else None)
            cells = [table[key][row] for row in known.tolist()]
            if kind == NUMBER:
                cells = (np.array(cells, np.float64) * (100 if unit else 1)).tolist()
            values[rows[known]] = [_text(one) if kind != NUMBER else one for one in cells]
            columns.append(Original(name, kind, np.round(values, 1) if unit else values, (), unit))
        if not columns or not len(known) or len(set(rows[known].tolist())) < len(known):
            return None
        first = columns[0].values[rows[known]] if columns[0].kind == NUMBER else -known
        return Ranking(rows[known][np.argsort(-first, kind="stable")], tuple(columns))
    except DAMAGED:
        return None


def _text(cell: Any) -> str | None:
    listed = isinstance(cell, list)
    return ", ".join(map(str, cell)) if listed else None if cell is None else str(cell)


def _predicted(
    table: Mapping[str, Sequence[Any]], about: Mapping[str, Any]
) -> list[tuple[str, str, str, str]]:
    """Returns columns of a table of predictions, and how they are called, the ranking one first.

    Of two classes, the one that is looked for ranks: it sorts the table, or is the rarer one.
    """
    classes = [name[2:] for name in table if name.startswith("p:")]
    found = [("probability", "probability", NUMBER, " %")]
    if len(classes) == 2 and not about.get("several"):
        labelled = about.get("labelled") or {}
        rarer = min(reversed(classes), key=lambda name: int(labelled.get(name, 0)))
        sorting = [
            name
            for name in classes
            if len(table["id"]) > 2 and (np.diff(np.array(table[f"p:{name}"], float)) <= 0).all()
        ]
        name = [*sorting, rarer][0]
        found = [(f"p:{name}", f"probability of {name}", NUMBER, " %")]
    found += [("value", "predicted value", NUMBER, ""), ("low", "at least", NUMBER, "")]
    found += [("high", "at most", NUMBER, ""), ("label", "prediction", CATEGORY, "")]
    return [one for one in (*found, ("why", "why", TEXT, "")) if one[0] in table]


def all_columns(
    nodes: Nodes, ranking: Ranking | None, assigned: Array | None, own: Sequence[Original]
) -> tuple[list[Original], list[Original]]:
    """Returns what the page knows of each node, and the user's columns, which are left out first.

    Points of the map are coloured by the first at first.
    """
    found = [] if ranking is None else list(ranking.columns)
    labels = [one for one in own if one.name == LABEL and one.kind == CATEGORY]
    found += [] if found else labels
    if assigned is not None:
        names = [f"group {number}" for number in range(1, int(assigned.max(initial=-1)) + 2)]
        texts = np.array([*names, None], dtype=object)  # −1 is the last
        found.append(Original("group", CATEGORY, texts[assigned]))
    if nodes.split_codes is not None:
        codes = np.array([None, *SPLITS[1:]], dtype=object)[nodes.split_codes]
        found.append(Original("split", CATEGORY, codes))
    last = [] if ranking is None else labels  # most ranked nodes have none
    others = [part for one in own if one not in labels for part in _single(one)]
    return found, others + last


def _single(one: Original) -> list[Original]:
    """Returns a column as such that have one value a node; of many features, one with the largest.

    Of flags, the rarest that a node has come first.
    """
    if one.kind == FEATURES and len(one.items) <= SINGLE_FEATURES:
        each = zip(one.items, one.values.T, strict=True)
        return [Original(name, NUMBER, values.astype(np.float64)) for name, values in each]
    if one.kind in (FEATURES, FLAGS):
        title = LABEL if one.name == LABEL else f"largest {one.name}"
        return [Original(title, TEXT, np.array([*_largest(one), None], dtype=object)[:-1])]
    if one.kind not in (CATEGORY, TEXT):
        return [one]
    short = [None if text is None else text[:MOST_TEXT] for text in one.values.tolist()]
    return [replace(one, values=np.array([*short, None], dtype=object)[:-1])]


def _largest(one: Original) -> list[str]:
    if one.kind == FLAGS:
        often, flags = np.asarray(one.values.sum(axis=0)).ravel(), one.values.tocsr()
        each = (flags.indices[a:b] for a, b in zip(flags.indptr, flags.indptr[1:], strict=False))
        best = (items[np.argsort(often[items], kind="stable")[:LARGEST]] for items in each)
        return [", ".join(one.items[item] for item in some) for some in best]
    spread = one.values.std(axis=0)
    score = np.abs(one.values - one.values.mean(axis=0)) / np.where(spread > 0, spread, 1)
    best = np.argsort(-score, axis=1, kind="stable")[:, :LARGEST].tolist()
    return [
        ", ".join(f"{one.items[item]} = {one.values[row, item]:.3g}" for item in some)
        for row, some in enumerate(best)
    ]
