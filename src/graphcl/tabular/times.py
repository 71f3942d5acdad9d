"""Times of rows: what was known by a day, and how long ago an edge came.

A column of a table of nodes or of a list of edges says when each row came: dates, or numbers such
as years. With a day, rows that are later are left out as a table is opened, before anything is
looked at: ids, means, categories and words are those of what was known by then. A table without
times was known all along. An edge is known with both its ends.

Times are seconds since 1970, in UTC: a time with a zone is brought there, one without is taken as
it stands. A day without an hour is meant as a whole. Numbers are compared as they are.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError, counted, demand, option
from graphcl.graphs.relation import Relation
from graphcl.tabular import cells
from graphcl.tabular import columns as table_columns
from graphcl.tabular.duck import Duck, quoted
from graphcl.tabular.kinds import DAY
from graphcl.tabular.options import TableOptions, by_name, having
from graphcl.tabular.preparation import AGE, Column
from graphcl.tabular.report import Usual, refuse, short
from graphcl.tabular.sources import Source

TIME, LABELLED = "time of the row", "time of the label"  # columns that opened tables have
Key = tuple[str, str]  # ``nodes`` or ``edges``, and the type or relation


class TimeColumn(NamedTuple):
    """A column of times: its name, SQL for a time in seconds or as a number, and which of both."""

    name: str
    sql: str
    dates: bool


class Times:
    """The times of all tables of a graph.

    Args:
        options: say which columns hold times, and until when rows count.
        tables: the tables by what they are of, each with its session.

    Attributes:
        dates: whether times are dates.
        until: the time until which rows count: the one that is given, or the latest. None without
            times.
        text: that time, as an option takes it.
        notes: lines for the user, by table.
    """

    def __init__(self, options: TableOptions, tables: Mapping[Key, tuple[Duck, Source]]) -> None:
        self._options, self._tables = options, tables
        self.notes: dict[Key, list[str]] = {key: [] for key in tables}
        self._times = {key: self._read(key, name) for key, name in self._named("time").items()}
        self._labelled = {
            key: self._read(key, name, labels=True)
            for key, name in self._named("label_time").items()
            if key[0] == "nodes"
        }
        found = [*self._times.values(), *self._labelled.values()]
        self.dates, self.until = any(one.dates for one in found), None
        for one in found:
            demand(
                one.dates == self.dates,
                f"{option('time')}: {one.name!r} holds numbers, and other times are dates; all are "
                "to be of one kind",
            )
        self.text = options.until
        if self.text is None and self._times:
            latest = [self._row(key, f"max({one.sql})")[0] for key, one in self._times.items()]
            self.text = text_of(max(one for one in latest if one is not None), dates=self.dates)
        if self.text is not None and found:
            self.until = moment_of(self.text, dates=self.dates)
        demand(
            found or self.text is None or self._is_trained,
            f"{option('until')}: no table has times; name their columns: {option('time')}",
        )

    @property
    def _is_trained(self) -> bool:
        """Whether a training has seen tables with these times; other tables need not have them."""
        return (self._options.preparation, self._options.preparations) != (None, None)

    def _named(self, keyword: str) -> dict[Key, str]:
        """Returns the columns that an option gives to tables."""
        found = dict[Key, str]()
        pairs = by_name(
            keyword, getattr(self._options, keyword), {name for _, name in self._tables}
        )
        for kind, column in pairs:
            having = {
                key: name
                for key, (_, source) in self._tables.items()
                if kind in ("", key[1]) and (name := table_columns.named(source, [column]))
            }
            for key in sorted(found.keys() & having.keys()):
                raise GraphError(f"{option(keyword)}: {key[1]} has two, one is {column!r}")
            known = [name for _, source in self._tables.values() for name in source.columns]
            demand(
                having or self._is_trained,
                f"{option(keyword)}: no table has the column {column!r}; got "
                f"{', '.join(dict.fromkeys(known))}",
            )
            found |= having
        return found

    def _row(self, key: Key, picked: str, where: str = "true") -> tuple[Any, ...]:
        duck, source = self._tables[key]
        return duck.row(f"SELECT {picked} FROM {source.relation} WHERE {where}", where=source.name)

    def _read(self, key: Key, name: str, *, labels: bool = False) -> TimeColumn:
        """Finds what a column of times holds.

        Raises:
            GraphError: a row has no time, or a cell is none.
        """
        (duck, source), sql = self._tables[key], cells.number(self._tables[key][1], name)
        numbers = cells.kind_of_type(source.columns[name]) == "number"
        if cells.is_text(source, name):
            there = f"NOT {cells.absent(source, name)}"
            numbers = self._row(key, f"bool_and({sql} IS NOT NULL)", there)[0]
        if not numbers:
            if cells.is_written(source, name):
                form = self._options.date_format
                forms, wrong_forms = cells.find_forms(
                    duck, source, "date_format", [name], form, strict=False
                )
                refuse(list(wrong_forms.values()))
                source = replace(source, dates=forms)
            sql = cells.date(source, name)
        wrong = f"({sql}) IS NULL OR NOT isfinite({sql})"
        if labels:  # a node without a label need not have a time of it
            cell = "coalesce(trim({}::VARCHAR), '') = ''"
            empty = [cell.format(quoted(one)) for one in self._labels(key)]
            wrong = f"({wrong}) AND NOT ({' AND '.join(empty) or 'true'})"
        count, first = self._row(key, f"count(*), any_value({quoted(name)}::VARCHAR)", wrong)
        shown = "" if first is None else f", such as {short(first)}"
        demand(
            not count,
            f"{source.name}: {counted(count, 'row has', 'rows have')} no time in column "
            f"{name!r}{shown}; correct them, or leave them out with a query",
        )
        return TimeColumn(name, f"({sql})", not numbers)

    def _labels(self, key: Key) -> list[str]:
        """Returns the columns of labels of a node table."""
        kinds = [name for what, name in self._tables if what == "nodes"]
        pairs = by_name("label", self._options.label, kinds)
        wanted = [column for kind, column in pairs if kind in ("", key[1])]
        return having(self._tables[key][1].columns, wanted)

    def cut(self, key: Key) -> Source:
        """Returns a table as it was known, with its times in columns of their own.

        Columns of times are no features, unless an option says what they are.
        """
        source, own, labelled = self._tables[key][1], self._times.get(key), self._labelled.get(key)
        both = {TIME: own, LABELLED: labelled}
        found = {name: one for name, one in both.items() if one is not None}
        kept = having(
            source.columns, [one for text in self._options.date for one in text.split("=")]
        )
        gone = {one.name for one in found.values() if one.name not in kept}
        picked = f"* EXCLUDE ({', '.join(map(quoted, gone))})" if gone else "*"
        later, where = "", "true"
        if labelled is not None and self.until is not None and self._labels(key):
            cell = f"CASE WHEN {labelled.sql} <= {self.until!r} THEN {{0}} END AS {{0}}"
            hidden = [cell.replace("{0}", quoted(one)) for one in self._labels(key)]
            picked += f" REPLACE ({', '.join(hidden)})"
        if own is not None:
            where = f"{own.sql} <= {self.until!r}"
            later = f"(SELECT * FROM {source.relation} WHERE NOT {where})"
            self._say(key, own, where)
        picked += "".join(f", {one.sql} AS {quoted(name)}" for name, one in found.items())
        columns = {name: kind for name, kind in source.columns.items() if name not in gone}
        return replace(
            source,
            relation=f"(SELECT {picked} FROM {source.relation} WHERE {where})"
            if found
            else source.relation,
            columns=columns | dict.fromkeys(found, "DOUBLE"),
            time="" if own is None else own.name,
            later=later,
        )

    def _say(self, key: Key, own: TimeColumn, where: str) -> None:
        """Says how many rows are left out.

        Raises:
            GraphError: no node is left.
        """
        rows, known, first = self._row(key, f"count(*), count_if({where}), min({own.sql})")
        said = f"times in {own.name!r}: "
        if key[0] == "nodes" and rows:
            demand(
                known,
                f"{self._tables[key][1].name}: {said}all {rows:,} rows are later than {self.text}; "
                f"the first is of {text_of(first, dates=own.dates)}",
            )
        left = f"{said}{rows - known:,} of {counted(rows, 'row')} later than {self.text}: left out"
        self.notes[key].append(left if known < rows else Usual(f"{said}until {self.text}"))

    def age(self, source: Source) -> Column | None:
        """Returns what turns the times of a list of edges into a feature; None if it has none."""
        if not source.time or not self._options.age or self.until is None:
            return None
        name = (f"time since {source.time}",)
        return Column(source.time, AGE, name, origin=self.until, clock=self.dates)


def moment_of(text: str, *, dates: bool) -> float:
    """Returns the last moment of a day, or a time, in seconds; or a number.

    Raises:
        GraphError: it is not what columns of times hold.
    """
    try:
        if dates:
            at = datetime.fromisoformat(text)
            at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
            return at.timestamp() + (0 if set(text) & set("T: ") else DAY - 1e-6)
        if isfinite(float(text)):
            return float(text)
    except ValueError:
        pass
    held = "dates, such as 2026-05-17 or 2026-05-17T09:30" if dates else "numbers"
    raise GraphError(f"{option('until')}: times are {held}; got {short(text)}")


def text_of(moment: float, *, dates: bool) -> str:
    """Returns a time as an option takes it; `moment_of` it is no earlier.

    The beginning and the end of a day are that day.
    """
    if not dates:
        return f"{moment:.17g}"
    whole, part = divmod(moment, 1)
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=whole, microseconds=round(part * 1e6))
    at += timedelta(microseconds=at.timestamp() < moment)
    day = at.time() in (time(), time.max)
    return str(at.date()) if day else at.isoformat().replace("+00:00", "Z")


def ages(column: Column, times: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Returns the feature of edges of these times, ``[edges, 1]``: log(1 + age), in days."""
    unit = DAY if column.clock else 1.0
    found = np.log1p(np.maximum(column.origin - times, 0) / unit)
    return found.astype(np.float32)[:, None]


def age_of(relation: Relation) -> Column | None:
    """Returns what makes the last feature of a relation's edges, if that is their age."""
    columns = () if relation.preparation is None else relation.preparation.columns
    return columns[-1] if columns and columns[-1].kind == AGE else None


def has_age_alone(relation: Relation) -> bool:
    """Returns whether edges have no other feature than their age: those with the same ends are one.

    Such an edge is as old as the latest row that names it.
    """
    return age_of(relation) is not None and relation.num_edge_features == 1


def move_ages(relation: Relation, until: float) -> Relation:
    """Returns a relation with the ages of its edges as they are at another time."""
    column, moved = age_of(relation), np.array(relation.edge_features)
    if column is None or relation.edge_features is None:
        return relation
    unit = DAY if column.clock else 1.0
    days = np.expm1(moved[:, -1].astype(np.float64)) + (until - column.origin) / unit
    moved[:, -1] = np.log1p(np.maximum(days, 0))
    columns = (*relation.preparation.columns[:-1], replace(column, origin=until))
    prepared = replace(relation.preparation, columns=columns)
    return replace(relation, edge_features=moved, preparation=prepared)
