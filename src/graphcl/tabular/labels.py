"""Labels and splits from the columns of a node table."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from graphcl.errors import GraphError, counted, demand, option
from graphcl.graphs.validation import FEW_VALUES, is_labelled, is_number, spelled_alike
from graphcl.tabular.cells import NO_VALUE, absent, is_text, plain
from graphcl.tabular.duck import Duck, literal, quoted
from graphcl.tabular.report import listed, short
from graphcl.tabular.sources import Source

MAX_LABELS = 1000
SEPARATORS = ("|", ";", ",")
_YES, _NO = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no")
_NONE = ("", "-1", "-1.0", "nan")  # of a flag that is not known


def read_number(duck: Duck, source: Source, name: str, kind: str) -> npt.NDArray[np.float64] | None:
    """Returns a number per row, NaN where there is none; None if the column has classes.

    Args:
        duck: the session.
        source: the node table.
        name: the column.
        kind: one of `LABEL_KINDS`; ``auto`` takes texts of a typed table for classes, and of
            numbers asks `is_number`.

    Raises:
        GraphError: it is to be a number, and a cell is none.
    """
    text_only = source.columns[name] == "VARCHAR" and not is_text(source, name)
    if kind == "classes" or (kind == "auto" and text_only):
        return None
    cell, none = f"TRY_CAST(({plain(source, name)})::VARCHAR AS DOUBLE)", absent(source, name)
    wrong = f"NOT {none} AND NOT coalesce(isfinite({cell}), false)"
    for row, text in duck.first("node_rows", wrong, quoted(name), where=source.name):
        demand(
            kind != "number",
            f"{source.name}: row {row}, column {name!r}: {short(text)} is not a number",
        )
        return None
    query = f"SELECT CASE WHEN {none} THEN 'nan'::DOUBLE ELSE {cell} END FROM node_rows"
    (y,) = duck.arrays(f"{query} ORDER BY rowid", where=source.name)
    there = not np.isnan(y).all()
    return y if there and (kind == "number" or is_number(y)) else None


def describe_number(y: npt.NDArray[np.float64], name: str, kind: str) -> str:
    """Says which number is to be predicted."""
    unknown, known = int(np.isnan(y).sum()), y[~np.isnan(y)]
    return (
        f"nodes: {name!r} is a number to predict, {known.min():g} to {known.max():g}"
        + (f"; {counted(unknown, 'node')} without it" if unknown else "")
        + (f"; if it has classes, pass {option('label_kind', 'classes')}" * (kind == "auto"))
    )


def describe(y: npt.NDArray[np.int64], names: Sequence[str], classes: Sequence[str]) -> str:
    """Says which labels nodes have: one class each, or several labels."""
    found = counted(y.shape[1], "label per node", "labels per node") if y.ndim > 1 else ""
    none = int((y == 0).all(axis=1).sum()) if y.ndim > 1 else 0
    unlabelled = int((~is_labelled(y)).sum())
    return (
        f"nodes: labels in {', '.join(map(repr, names))}: "
        + (found or counted(int(y.max()) + 1, "class", "classes"))
        + (f": {listed(classes)}" if classes else "")
        + (f"; {counted(none, 'node')} with none of them" if none else "")
        + (f"; {counted(unlabelled, 'node')} without a label" if unlabelled else "")
    )


def odd_labels(duck: Duck, name: str, classes: Sequence[str], kind: str) -> list[str]:
    """Says which cells are no label although they may be a class, and the other way round.

    It also says whether the column may be a number, or hold several labels in a cell; `kind` is
    what the caller says of that.
    """
    column, notes = f"trim({quoted(name)}::VARCHAR)", []
    odd = [repr(one) for one in classes if one.strip().lower() in NO_VALUE]
    if odd:
        notes.append(
            f"nodes: {listed(odd)} in {name!r} is a class; a node without a label has an empty cell"
        )
    if alike := spelled_alike(classes):
        notes.append(
            f"nodes: classes in {name!r} that differ in case or spaces alone: {listed(alike)}"
        )
    count = duck.count(f"node_rows WHERE {column} IN ('-1', '-1.0')")
    if count and not {"-1", "-1.0"} & {one.strip() for one in classes}:
        notes.append(
            f"nodes: -1 in {name!r} is no label: {counted(count, 'node')} without one; if it "
            "is a class, give it a name"
        )
    whole = all(one.lstrip("-").isdecimal() for one in classes)
    if kind == "auto" and whole and len(classes) > FEW_VALUES:
        notes.append(
            f"nodes: {name!r} has many classes; if it is a number to predict, pass "
            f"{option('label_kind', 'number')}"
        )
    if classes and (mark := separator_in(duck, name)):
        notes.append(
            f"nodes: cells of {name!r} contain {mark!r}; if it stands between labels, pass "
            f"{option('label_separator', mark, written=repr(mark))}"
        )
    return notes


def read_labels(
    duck: Duck, source: Source, name: str
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Returns a class number per row (−1 if there is none) and the names of the classes.

    Integers 0 … C − 1 are the class numbers; other values are numbered in sorted order. Beside
    integers, ``NA`` and the like are no label; among texts they may be a class, such as ``none``.
    """
    column = quoted(name)
    cell = f"trim({column}::VARCHAR)"
    empty = f"{column} IS NULL OR {cell} = ''"
    if source.columns[name] in ("FLOAT", "DOUBLE"):
        empty += f" OR isnan({column})"
    no_value = f"({empty}) OR lower({cell}) IN ({', '.join(map(literal, NO_VALUE))})"
    whole = f"TRY_CAST({column} AS BIGINT)"
    text_only = source.columns[name] == "VARCHAR" and not source.untyped
    # 007 is a code, which keeps its zeros.
    plain_number = (
        f"{whole} = TRY_CAST({column} AS DOUBLE) AND NOT regexp_matches({cell}, '^0[0-9]')"
    )
    there, numbers, values, low, high = duck.row(
        f"SELECT count(*), bool_and(coalesce({plain_number}, false)) FILTER (NOT ({no_value})), "
        f"count(DISTINCT {whole}) FILTER ({whole} >= 0), "
        f"min({whole}), max({whole}) FROM node_rows WHERE NOT ({empty})",
        where=source.name,
    )
    demand(there, f"{source.name}: {option('label')}: column {name!r} has no values")
    absent, order, kept = empty, f"{column}::VARCHAR", False
    if numbers and not text_only and low >= -1:
        absent, order, kept = f"{no_value} OR {whole} = -1", whole, high + 1 == values
    duck.run(
        "CREATE OR REPLACE TABLE classes AS SELECT c::VARCHAR AS name, "
        "row_number() OVER (ORDER BY c) - 1 AS number FROM "
        f"(SELECT DISTINCT {order} AS c FROM node_rows WHERE NOT ({absent}))",
        where=source.name,
    )
    query = (
        f"SELECT coalesce(number, -1) FROM (SELECT rowid AS place, CASE WHEN {absent} THEN NULL "
        f"ELSE ({order})::VARCHAR END AS c FROM node_rows) LEFT JOIN classes ON c = classes.name "
        "ORDER BY place"
    )
    (y,) = duck.arrays(query, where=source.name)
    listed = [] if kept else duck.rows("SELECT name FROM classes ORDER BY number")
    return y.astype(np.int64), tuple(name for (name,) in listed)


def read_several_labels(
    duck: Duck, source: Source, names: Sequence[str], separator: str | None
) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Returns zeros and ones ``[rows, labels]``, and the names of the labels.

    Columns of zeros and ones are a label each. In others, a cell holds a label, or several with a
    separator or as a list, and the labels of a node are those of all its cells.

    A node whose cells are all empty has no label: its row is −1. Zeros, or an empty list, say that
    it has none of them. An empty cell beside zeros and ones counts as a zero.
    """
    if separator is None and all(_is_flag(duck, source, name) for name in names):
        return _flags(duck, source, names), tuple(names)
    cells, answered = [], []
    for name in names:
        if is_list(source, name):
            listed = f"{quoted(name)}::VARCHAR[]"
            answered.append(f"{quoted(name)} IS NOT NULL")
        else:
            text = f"{quoted(name)}::VARCHAR"
            listed = f"[{text}]" if not separator else f"string_split({text}, {literal(separator)})"
        cells.append(f"SELECT rowid AS place, trim(unnest({listed})) AS name FROM node_rows")
    duck.run(
        "CREATE OR REPLACE TABLE label_cells AS SELECT DISTINCT * FROM "
        f"({' UNION ALL '.join(cells)}) WHERE name <> ''",
        where=source.name,
    )
    found = [name for (name,) in duck.rows("SELECT DISTINCT name FROM label_cells ORDER BY 1")]
    shown = ", ".join(map(repr, names))
    start = f"{source.name}: {option('label')}: {shown} has"
    demand(found, f"{start} no values")
    demand(
        len(found) <= MAX_LABELS,
        f"{start} {len(found):,} labels; at most {MAX_LABELS:,} can be told apart",
    )
    if all(name.isdecimal() and len(name) < 18 for name in found):
        found.sort(key=int)
    number = {name: place for place, name in enumerate(found)}
    y = np.full((duck.count("node_rows"), len(found)), -1, np.int64)
    known = " OR ".join(["rowid IN (SELECT place FROM label_cells)", *answered])
    (labelled,) = duck.arrays(f"SELECT rowid FROM node_rows WHERE {known}")
    y[labelled] = 0
    for batch in duck.batches("SELECT place, name FROM label_cells"):
        columns = [number[name] for name in batch.column(1).to_pylist()]
        y[batch.column(0).to_numpy(), columns] = 1
    return y, tuple(found)


def is_list(source: Source, name: str) -> bool:
    """Returns whether the cells of a column are lists, which hold several labels."""
    return source.columns[name].endswith("]")


def separator_in(duck: Duck, name: str) -> str:
    """Returns what seems to separate several labels in the cells of a column, or nothing."""
    cell = f"{quoted(name)}::VARCHAR"
    for mark in SEPARATORS:
        holds = f"contains({cell}, {literal(mark)})"
        with_mark, whole, parts = duck.row(
            f"SELECT count(*) FILTER ({holds}), count(DISTINCT {cell}), "
            f"(SELECT count(DISTINCT trim(part)) FROM (SELECT unnest(string_split({cell}, "
            f"{literal(mark)})) AS part FROM node_rows)) FROM node_rows"
        )
        if with_mark and parts < whole:
            return mark
    return ""


def _is_flag(duck: Duck, source: Source, name: str) -> bool:
    cell = f"lower(trim({quoted(name)}::VARCHAR))"
    none, known = (", ".join(map(literal, words)) for words in (_NONE, (*_NONE, *_NO, *_YES)))
    wrong, there = duck.row(
        f"SELECT count(*) FILTER ({cell} NOT IN ({known})), "
        f"count(*) FILTER ({cell} NOT IN ({none})) FROM node_rows",
        where=source.name,
    )
    return not wrong and bool(there)


def _flags(duck: Duck, source: Source, names: Sequence[str]) -> npt.NDArray[np.int64]:
    yes, none = (", ".join(map(literal, words)) for words in (_YES, _NONE))
    cells = [f"coalesce(lower(trim({quoted(name)}::VARCHAR)), '')" for name in names]
    flags = [f"CASE WHEN {cell} IN ({none}) THEN -1 ELSE {cell} IN ({yes}) END" for cell in cells]
    query = f"SELECT {', '.join(flags)} FROM node_rows ORDER BY rowid"
    y = np.stack(duck.arrays(query, where=source.name), axis=1).astype(np.int64)
    y[(y < 0) & (y >= 0).any(axis=1, keepdims=True)] = 0
    return y


def read_split(duck: Duck, source: Source, name: str) -> dict[str, npt.NDArray[np.bool_]]:
    """Returns the masks of a column of train, val and test; an empty cell is in no mask."""
    words = {
        "train_mask": ("train", "training"),
        "val_mask": ("val", "valid", "validation", "dev"),
        "test_mask": ("test", "testing"),
    }
    column = f"lower(trim({quoted(name)}::VARCHAR))"
    known = ["", "none", "unused", *(word for group in words.values() for word in group)]
    wrong = f"{column} NOT IN ({', '.join(map(literal, known))})"
    for row, cell in duck.first("node_rows", wrong, quoted(name), where=source.name):
        raise GraphError(
            f"{source.name}: row {row}, column {name!r}: {short(cell)} is not a split; known: "
            "train, val, test, or an empty cell"
        )
    groups = [", ".join(map(literal, group)) for group in words.values()]
    flags = ", ".join(f"coalesce({column} IN ({group}), false)" for group in groups)
    masks = duck.arrays(f"SELECT {flags} FROM node_rows ORDER BY rowid")
    return {name: mask.astype(np.bool_) for name, mask in zip(words, masks, strict=True)}
