"""Columns of new edges become features, as the training's list of edges did.

Edges that a request or `GraphCL.embed_new` describes have the columns of their owner's table, by
name. What became of these columns is known from the training, and nothing is fitted again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from graphcl.arrays import Floats
from graphcl.errors import GraphError
from graphcl.graphs.relation import Relation
from graphcl.tabular.kinds import RowError, prepare_rows, read_moments
from graphcl.tabular.preparation import AGE, DATE, Column, Preparation
from graphcl.tabular.times import ages, has_age_alone

EdgeColumns = Mapping[str, Any] | Sequence[float] | None  # of an edge; see `prepare_edges`


def described_columns(relation: Relation) -> list[Column]:
    """Returns the columns of a relation's edges that have to be given for a new edge."""
    columns = () if relation.preparation is None else relation.preparation.columns
    return [one for one in columns if one.kind != AGE]


def prepare_edges(
    relation: Relation, given: Sequence[EdgeColumns], names: Sequence[str]
) -> Floats | None:
    """Returns the features of new edges of a relation, ``[edges, features]``; None if it has none.

    Args:
        relation: of the graph, with what made the features of its edges.
        given: of each edge, a value for each column of the training's list, by the column's name;
            the column of times may be left out, for an edge of this moment. Where no table made
            the features, the features themselves. None where edges have no columns.
        names: what each edge is called in messages.

    Raises:
        GraphError: an edge lacks columns, has others, or a value is not what the training had.
    """
    width, called = relation.num_edge_features, f"edges of {relation.name}"
    if not width:
        for name, one in zip(names, given, strict=True):
            if one is not None:
                raise GraphError(f"{name}: {called} have no columns; leave them out")
        return None
    if relation.preparation is None:
        return _numbers(relation, given, names)
    rows: list[Mapping[str, Any]] = []
    for name, one in zip(names, given, strict=True):
        if one is None and has_age_alone(relation):
            one = {}
        if not isinstance(one, Mapping):
            listed = ", ".join(repr(column.name) for column in relation.preparation.columns[:8])
            raise GraphError(f"{name}: {called} have columns; give a value for each of {listed}")
        rows.append(one)
    return _prepared(relation.preparation, rows, names, width)


def _numbers(relation: Relation, given: Sequence[EdgeColumns], names: Sequence[str]) -> Floats:
    """Returns features that were given as such."""
    width = relation.num_edge_features
    wanted = f"edges of {relation.name} have features, and no table made them; give {width} numbers"
    found = np.zeros((len(given), width), np.float32)
    for row, (name, one) in enumerate(zip(names, given, strict=True)):
        if one is None or isinstance(one, Mapping | str):
            raise GraphError(f"{name}: {wanted}")
        try:
            numbers = np.asarray(one, np.float64)
        except (TypeError, ValueError):
            raise GraphError(f"{name}: {wanted}") from None
        if numbers.shape != (width,):
            raise GraphError(f"{name}: {wanted}; got {numbers.shape}")
        if not (np.abs(numbers) <= np.finfo(np.float32).max).all():
            raise GraphError(f"{name}: a feature is not finite, or outside the range of float32")
        found[row] = numbers
    return found


def _prepared(
    preparation: Preparation, rows: Sequence[Mapping[str, Any]], names: Sequence[str], width: int
) -> Floats:
    """Returns the features of rows that have a value for each column."""
    timed = [one for one in preparation.columns if one.kind == AGE]
    columns = tuple(one for one in preparation.columns if one.kind != AGE)
    apart = {one.name for one in timed}
    own = [{key: row[key] for key in row if key not in apart} for row in rows]
    parts = []
    try:
        parts.append(prepare_rows(own, replace(preparation, columns=columns), width - len(timed)))
        parts += [_ages(column, [row.get(column.name) for row in rows]) for column in timed]
    except RowError as error:
        raise GraphError(f"{names[error.place]}{error.what}") from None
    return np.concatenate(parts, axis=1)


def _ages(column: Column, values: list[Any]) -> Floats:
    """Returns the ages of edges; one without a time is of this moment."""
    if column.clock:
        moments = read_moments(replace(column, kind=DATE), values)
    else:
        moments = []
        for place, value in enumerate(values):
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int | float)
            ):
                raise RowError(place, f", column {column.name!r}: {value!r} is not a number")
            moments.append(value)
    times = np.array([column.origin if one is None else one for one in moments], np.float64)
    return ages(column, times)
