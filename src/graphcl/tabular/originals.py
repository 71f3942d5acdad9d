"""The columns of nodes as their owner knows them, to describe groups and to show in a report.

They are the cells of a node table, with columns that are no features; of a graph that came from no
table, or from one with too many cells to keep, they are its features. A store keeps cells beside
the features, in `cells.npz`: all numbers as one matrix, all texts as one run of bytes. It needs no
Arrow to be read.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from graphcl.arrays import Integers
from graphcl.errors import StoreError
from graphcl.files.arrays import read_npz
from graphcl.files.atomic import whole_file
from graphcl.graphs.nodes import Nodes
from graphcl.graphs.structural import FEATURE_NAMES
from graphcl.tabular import cells
from graphcl.tabular.features import batches
from graphcl.tabular.kinds import DAY, FEW_CATEGORIES
from graphcl.tabular.preparation import CATEGORY, DATE, DURATION, NUMBER, TEXT, VECTOR
from graphcl.tabular.sources import Source

if TYPE_CHECKING:
    from graphcl.tabular.nodes import NumberedNodes

FEATURES, FLAGS = "features", "flags"  # kinds of many columns at once
LABEL, DEGREE = "label", "degree"
MOST_CELLS = 2_000_000  # of a table; those of a larger one are not kept
MOST_COLUMNS = 200
MOST_VALUES = 1 << 28  # of features: a gigabyte
CELLS = "cells.npz"
_NUMBERS = (NUMBER, DATE)  # kinds whose cells are numbers; those of other kinds are texts
_KINDS = (*_NUMBERS, CATEGORY, TEXT)


@dataclass(frozen=True, eq=False)
class Original:
    """A column of nodes, or many features that have no column.

    Attributes:
        name: of the column.
        kind: ``number``, ``date``, ``category`` or ``text``; ``features`` are many numbers, and
            ``flags`` many things that a node has or has not.
        values: numbers, or days since 1970, with NaN where there is none; texts, with None;
            features ``[nodes, items]``; flags, a sparse matrix of that shape.
        items: the names of features and flags.
        unit: what stands behind a number.
    """

    name: str
    kind: str
    values: Any
    items: tuple[str, ...] = ()
    unit: str = ""

    def text(self, row: int) -> str:
        """Returns a number, date, category or text as a reader sees it; empty where none is."""
        value = self.values[row]
        if value is None or value != value:
            return ""
        if self.kind == DATE:
            return str(np.datetime64(int(value), "D"))
        return f"{value:,.7g}{self.unit}" if self.kind == NUMBER else str(value)


def read_cells(nodes: "NumberedNodes") -> tuple[Original, ...]:
    """Returns the columns of a node table, but for ids, labels and split; a cell for each node.

    Nodes that only edges name have empty cells. There are no columns if there is no table, or too
    large a one.
    """
    import pyarrow

    source = nodes.source
    if source is None or nodes.matrix is not None:
        return ()
    names = [name for name in source.columns if name not in nodes.used_columns]
    if len(names) > MOST_COLUMNS or len(names) * nodes.num_nodes > MOST_CELLS:
        return ()
    prepared = nodes.report.preparation
    known = {one.name: one for one in (prepared.columns if prepared else ())}
    source = cells.with_formats(source, known.values())
    typed = {name: cells.kind_of_type(source.columns[name]) for name in names}
    kinds = typed | {name: known[name].kind for name in names if name in known}
    names = [name for name in names if kinds[name] not in ("", VECTOR)]
    sql = [_cell(source, name, kinds[name]) for name in names] or ["NULL"]
    table = pyarrow.Table.from_batches(batch for _, batch in batches(nodes.duck, source, sql))
    return tuple(
        _original(name, kinds[name] if name in known else "", one, nodes.num_nodes)
        for name, one in zip(names, table.columns, strict=False)
    )


def _cell(source: Source, name: str, kind: str) -> str:
    """Returns an SQL expression for a cell: a number, days, or a text."""
    sql = {NUMBER: cells.number, DATE: cells.date, DURATION: cells.duration}
    if kind not in sql:
        return cells.text(source, name)
    return f"({sql[kind](source, name)})::DOUBLE" + ("" if kind == NUMBER else f" / {DAY}")


def _original(name: str, kind: str, cells_: Any, count: int) -> Original:
    """Returns a column as it was prepared; `kind` is empty if it was not."""
    import pyarrow

    holes = pyarrow.nulls(count - len(cells_), cells_.type)  # of nodes that only edges name
    values = pyarrow.concat_arrays([*cells_.chunks, holes]).to_numpy(zero_copy_only=False)
    if pyarrow.types.is_floating(cells_.type):
        return Original(name, DATE if kind == DATE else NUMBER, values)
    there = [text for text in values if text is not None]
    few = 0 < len(set(there)) <= min(FEW_CATEGORIES, (len(there) + 1) // 2)
    return Original(name, kind or (CATEGORY if few else TEXT), values)


def write_cells(folder: Path, columns: Sequence[Original]) -> None:
    """Writes the cells of nodes into the folder of their type in a store.

    Args:
        folder: the folder.
        columns: as `read_cells` returns them, at least one.
    """
    numbers = [one.values for one in columns if one.kind in _NUMBERS]
    texts = [cell for one in columns if one.kind not in _NUMBERS for cell in one.values.tolist()]
    encoded = [(cell or "").encode("utf-8", "surrogatepass") for cell in texts]
    about = json.dumps([[one.name, one.kind] for one in columns])
    with whole_file(folder / CELLS) as staging:
        np.savez(
            staging,
            about=np.frombuffer(about.encode(), np.uint8),
            numbers=np.array(numbers, np.float64).reshape(len(numbers), len(columns[0].values)),
            text=np.frombuffer(b"".join(encoded), np.uint8),
            ends=np.cumsum([len(one) for one in encoded], dtype=np.int64),
            missing=np.array([cell is None for cell in texts], np.bool_),
        )


def read_stored_cells(folder: Path, num_nodes: int) -> tuple[Original, ...]:
    """Returns the cells that a store keeps of the nodes of a type; none where it keeps none.

    Args:
        folder: of the type in the store.
        num_nodes: how many nodes the type has.

    Raises:
        StoreError: the file is damaged, or does not fit the nodes.
    """
    path = folder / CELLS
    if not path.exists():
        return ()
    arrays = read_npz(path, ("about", "numbers", "text", "ends", "missing"), StoreError)
    try:
        about = [(str(name), str(kind)) for name, kind in json.loads(arrays["about"].tobytes())]
        numbers, ends = arrays["numbers"], arrays["ends"].tolist()
        text, missing = arrays["text"].tobytes(), arrays["missing"]
        listed = [
            None if absent else text[start:end].decode("utf-8", "surrogatepass")
            for (start, end), absent in zip(pairwise([0, *ends]), missing.tolist(), strict=True)
        ]
        rows_of_numbers = list(numbers)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"{path}: damaged ({type(error).__name__}: {str(error)[:80]})") from None
    kinds = [kind for _, kind in about]
    of_numbers = sum(kind in _NUMBERS for kind in kinds)
    of_texts = len(kinds) - of_numbers
    if (
        not set(kinds) <= set(_KINDS)
        or numbers.shape != (of_numbers, num_nodes)
        or numbers.dtype != np.float64
        or len(listed) != of_texts * num_nodes
    ):
        raise StoreError(f"{path}: damaged; it does not have a cell of each column for each node")
    cells_of_texts = np.array([*listed, None], dtype=object)[:-1].reshape(of_texts, num_nodes)
    rows_of_texts = list(cells_of_texts)
    return tuple(
        Original(name, kind, (rows_of_numbers if kind in _NUMBERS else rows_of_texts).pop(0))
        for name, kind in about
    )


def updated_cells(
    columns: Sequence[Original],
    size: int,
    stated: Integers,
    given: Sequence[Original],
    places: Integers,
) -> tuple[Original, ...]:
    """Returns the cells of nodes after an update.

    Args:
        columns: the cells of the nodes before it.
        size: how many nodes there were and come.
        stated: the row of each row of the node table that was given, among those `size`.
        given: the cells of that table; a column that it lacks keeps its values, and one that only
            it has is left out.
        places: the nodes that are left, among those `size`.
    """
    by_name = {one.name: one for one in given}
    found = []
    for one in columns:
        number = one.kind in _NUMBERS
        values = np.full(size, np.nan if number else None, np.float64 if number else object)
        values[: len(one.values)] = one.values
        new = by_name.get(one.name)
        if new is not None and (new.kind in _NUMBERS) == number:
            values[stated] = new.values[: len(stated)]
        found.append(replace(one, values=values[places]))
    return tuple(found)


def originals(nodes: Nodes) -> list[Original]:
    """Returns what is known of nodes: cells or features, labels, and the number of links.

    Of more features than `MOST_VALUES` numbers, none are known.
    """
    x, prepared, own = nodes.x, nodes.preparation, nodes.cells or ()
    found = [one for one in own if len(one.values) == nodes.num_nodes]
    if x is not None and x.size <= MOST_VALUES:
        names = [*prepared.features] if prepared else []
        if prepared and x.shape[1] - len(names) == len(FEATURE_NAMES):
            names += FEATURE_NAMES
        names += [f"feature {place}" for place in range(len(names), x.shape[1])]
        start = sum(len(one.features) for one in prepared.columns) if prepared and found else 0
        found += _features(x, start, names[start:])
    if nodes.classes is not None:
        classes = [nodes.class_name(number) for number in range(nodes.num_classes)]
        texts = np.array([*classes, None], dtype=object)  # −1 is the last
        found.append(Original(LABEL, CATEGORY, texts[nodes.classes]))
    elif nodes.has_number:
        found.append(Original(LABEL, NUMBER, np.asarray(nodes.y, np.float64)))
    elif nodes.y is not None:
        named = nodes.class_names or range(nodes.num_classes)
        items = tuple(f"{LABEL} = {name}" for name in named)
        found.append(Original(LABEL, FLAGS, scipy.sparse.csr_array(nodes.y > 0), items))
    if nodes.degree is not None:
        found.append(Original(DEGREE, NUMBER, np.asarray(nodes.degree, np.float64)))
    return found


def _features(x: Any, start: int, names: list[str]) -> list[Original]:
    """Returns features: what most nodes lack as flags, the others as numbers."""
    if not names:
        return []
    if scipy.sparse.issparse(x):
        flags = scipy.sparse.csr_array(x[:, start:] != 0)
        return [Original(FEATURES, FLAGS, flags, tuple(names))]
    block, named = np.asarray(x, np.float32)[:, start:], np.array(names, dtype=object)
    rare = (block.min(axis=0, initial=0) >= 0) & (2 * np.count_nonzero(block, axis=0) <= len(block))
    flags = Original(FEATURES, FLAGS, scipy.sparse.csr_array(block[:, rare] != 0), (*named[rare],))
    numbers = Original(FEATURES, FEATURES, block[:, ~rare], (*named[~rare],))
    return [one for one in (flags, numbers) if one.items]
