"""The columns of nodes as their owner knows them, to describe groups and to show in a report.

They are the cells of a node table, with columns that are no features; of a graph that came from no
table, or from one with too many cells to keep, they are its features.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

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
