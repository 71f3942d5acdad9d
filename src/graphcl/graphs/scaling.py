"""`feature_scaling = "auto"`: looks at the columns of a table and decides what is done to each.

The rules, by the values in the training rows (constants below):

- *Words*: columns of zeros and ones, or of zeros in at least half of the rows and positive values
  of about the same size otherwise. If there are many of them, and a row has several, they are a bag
  of words: each row's words are divided by the root of their sum of squares, as ``unit`` does.
  Words of that size that more rows have belong to it too, if they are counts where the others are.
  In a table that has numbers as well, the words of a row together weigh as much as all of these.
- *Codes*: columns of zeros and ones that are not words stay as they are.
- *Constants* become 0.
- *Numbers*: all other columns. Each is shifted by its mean and divided by its deviation, and what
  is more than `LIMIT` deviations away is clipped. A column with a heavy tail becomes its signed
  logarithm first.

A sparse table stays sparse: its numbers are divided, not shifted.

Facts about columns are read in blocks of rows. A table may be dense, sparse or mapped from a store,
and is never converted as a whole. Sums are float64. The height of a block depends on the table's
width alone, so that a table has the same facts, bit for bit, in memory and mapped.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from graphcl.arrays import Array, Booleans, Doubles, Floats, Integers, blocks
from graphcl.distributed import ALONE, Share, gather_tables
from graphcl.errors import RunError, demand
from graphcl.graphs.relation import NODE, Key
from graphcl.graphs.schema import Schema
from graphcl.kernels.stored_features import ColumnTransform

_READ = 1 << 20  # values at a time: 8 MB of float64


class Rows(NamedTuple):
    """Some rows of a feature table.

    Attributes:
        x: a feature table as `Graph` has it.
        nodes: the rows that are looked at; None means all.
    """

    x: Any
    nodes: Integers | None = None

    @property
    def number(self) -> int:
        """Number of rows."""
        return int(self.x.shape[0]) if self.nodes is None else len(self.nodes)

    def blocks(self, height: int) -> Iterator[Any]:
        """Yields the rows in blocks, dense or CSR as the table is."""
        for block in blocks(self.number, height):
            yield self.x[block] if self.nodes is None else self.x[self.nodes[block]]


@dataclass(frozen=True)
class ColumnFacts:
    """What one pass over the rows says of each column, ``[P]``.

    Attributes:
        rows: number of rows.
        filled: how many values are not zero.
        low: the smallest value.
        high: the largest value.
        total: the sum.
        size: the sum of absolute values.
        binary: whether every value is 0 or 1.
        whole: whether every value is a whole number.
    """

    rows: int
    filled: Doubles
    low: Doubles
    high: Doubles
    total: Doubles
    size: Doubles
    binary: Booleans
    whole: Booleans

    @classmethod
    def of(cls, tables: Sequence[Rows], share: Share = ALONE) -> "ColumnFacts":
        """Reads the tables once; in a group of processes that `share` them, each reads its own."""
        width = int(tables[0].x.shape[1])
        filled, total, size = (np.zeros(width) for _ in range(3))
        low, high = np.full(width, np.inf), np.full(width, -np.inf)
        others = np.zeros(width, np.bool_)  # where a value is neither 0 nor 1
        broken = np.zeros(width, np.bool_)  # where a value is not a whole number
        for table in tables:
            sparse = scipy.sparse.issparse(table.x)
            each = -(-table.x.nnz // max(1, table.x.shape[0])) if sparse else width
            for block in table.blocks(max(1, _READ // max(1, each))):
                for columns, values, starts in _parts(block):
                    filled[columns] += _sums(values != 0, starts)
                    total[columns] += _sums(values, starts)
                    size[columns] += _sums(np.abs(values), starts)
                    low[columns] = np.minimum(low[columns], _least(values, starts))
                    high[columns] = np.maximum(high[columns], -_least(-values, starts))
                    others[columns] |= _sums((values != 0) & (values != 1), starts) > 0
                    broken[columns] |= _sums(values != np.floor(values), starts) > 0
        rows = int(summed(np.array([sum(table.number for table in tables)]), share)[0])
        filled, total, size = (summed(one, share) for one in (filled, total, size))
        low, high = each_of(low, share).min(0), each_of(high, share).max(0)
        others, broken = (each_of(one, share).max(0) for one in (others, broken))
        absent = filled < rows  # a value that is not stored is a zero
        low = np.where(absent, np.minimum(low, 0), low)
        high = np.where(absent, np.maximum(high, 0), high)
        return cls(rows, filled, low, high, total, size, ~others, ~broken)


def _parts(block: Any) -> Iterator[tuple[Any, Doubles, Any]]:
    """Yields columns, their values, and where each column's values begin (None: a dense block)."""
    if not scipy.sparse.issparse(block):
        yield slice(None), np.asarray(block, np.float64), None
        return
    csc = block.tocsc()
    starts = csc.indptr[:-1]
    some = np.flatnonzero(np.diff(csc.indptr))
    if len(some):
        yield some, csc.data.astype(np.float64), starts[some]


def _sums(values: Any, starts: Any) -> Doubles:
    return np.asarray(
        values.sum(0, dtype=np.float64)
        if starts is None
        else np.add.reduceat(values.astype(np.float64), starts)
    )


def _least(values: Any, starts: Any) -> Doubles:
    return np.asarray(values.min(0) if starts is None else np.minimum.reduceat(values, starts))


@dataclass(frozen=True)
class Moments:
    """Mean, deviation and kurtosis of columns; a normal column has kurtosis 3."""

    mean: Doubles
    deviation: Doubles
    kurtosis: Doubles

    @classmethod
    def of(
        cls,
        tables: Sequence[Rows],
        columns: Integers,
        unit: Doubles,
        near: Doubles,
        share: Share = ALONE,
    ) -> "Moments":
        """Reads some columns once.

        Args:
            tables: the rows.
            columns: the columns.
            unit: of each column: see `logarithm`; 0 means no logarithm.
            near: a number near the mean of each column: sums of powers are taken around it.
            share: of several processes, each of which has other rows.
        """
        sums, rows = np.zeros((4, len(columns))), 0
        height = max(1, _READ // max(1, len(columns)))
        for table in tables:
            rows += table.number
            for block in table.blocks(height):
                some = block[:, columns]
                dense = some.toarray() if scipy.sparse.issparse(some) else some
                apart = logarithm(np.asarray(dense, np.float64), unit) - near
                power = np.ones_like(apart)
                for order in range(4):
                    power *= apart
                    sums[order] += power.sum(0)
        rows = int(summed(np.array([rows]), share)[0])
        first, second, third, fourth = summed(sums, share) / rows
        variance = np.maximum(second - first**2, 0)
        central = fourth - 4 * first * third + 6 * first**2 * second - 3 * first**4
        squared = np.where(variance > 0, variance, 1) ** 2
        return cls(near + first, np.sqrt(variance), np.maximum(central, 0) / squared)


def logarithm(values: Doubles, unit: Doubles) -> Doubles:
    """Returns sign(x) log(1 + |x| / unit); where the unit is 0, x as it is."""
    found: Doubles = np.log1p(np.abs(values) / np.where(unit > 0, unit, 1)) * np.sign(values)
    return np.where(unit > 0, found, values)


def each_of(array: Array, share: Share) -> Array:
    """Returns the arrays of all processes, ``[world, *shape]``; all must have one shape."""
    flat = torch.from_numpy(np.ascontiguousarray(array).view(np.uint8))
    every = gather_tables(flat, share).numpy()
    return every.view(array.dtype).reshape(share.world, *array.shape)


def summed(array: Array, share: Share) -> Array:
    """Returns the sum of the arrays of all processes, in the order of ranks."""
    return np.asarray(each_of(array, share).sum(0))


KEPT, WORD, NUMBER, LOGARITHM, CONSTANT = range(5)
MOST_FILLED = 0.5  # of a column that may be words: the share of rows that are not zero
WORD_SIZE = 10.0  # the typical value of a word is within this factor of that of the median word
SMALL_PART = 0.01  # of the words' sum: a rare word may hold this much, whatever its typical value
LEAST_WORDS = 50  # columns of a bag of words; fewer are codes, or numbers that are mostly zero
WORDS_PER_ROW = 5.0  # on average; rows of one-hot codes have one for each code
HEAVY = 10.0  # kurtosis; a normal column has 3, an exponential one 9
LIMIT = 10.0  # deviations
CONSTANT_SPREAD = 1e-6  # deviation over the largest value: what float32 rounding leaves
_BLOCK = 1 << 22  # values at a time when clipped values are counted


@dataclass(frozen=True, eq=False)
class ColumnScaling:
    """What ``auto`` does to each column, with the statistics of the training rows; ``[P]`` each.

    Attributes:
        kind: `KEPT`, `WORD`, `NUMBER`, `LOGARITHM` or `CONSTANT`; uint8.
        unit: of a logarithm, sign(x) log(1 + |x| / unit); 0 for other columns; float32.
        shift: what is subtracted then; float32.
        factor: what the difference is multiplied by; float32.
    """

    kind: Array
    unit: Floats
    shift: Floats
    factor: Floats

    @property
    def plain(self) -> str:
        """``unit`` or ``none`` where auto comes to that for the whole table; else empty."""
        if (self.kind == WORD).all():
            return "unit"
        return "none" if (self.kind == KEPT).all() else ""

    def transform(self, device: torch.device) -> ColumnTransform:
        """Returns what is applied to rows."""
        limited = (self.kind == NUMBER) | (self.kind == LOGARITHM)
        limit = np.where(limited, LIMIT, np.inf).astype(np.float32)
        parts = (self.kind == WORD, self.unit, self.shift, self.factor, limit)
        return ColumnTransform(*(torch.tensor(part, device=device) for part in parts))

    def describe(self) -> str:
        """Returns one line that says what is done to how many columns."""
        numbers, logs = (int((self.kind == kind).sum()) for kind in (NUMBER, LOGARITHM))
        how = "divided by their deviation" if not self.shift.any() else "standardised"
        after = f" ({logs:,} after a logarithm)" if logs else ""
        said = [
            _said(int((self.kind == WORD).sum()), "{} of words, rows scaled"),
            _said(numbers + logs, f"{{}} of numbers {how}{after}"),
            _said(int((self.kind == KEPT).sum()), "{} of zeros and ones as they are"),
            _said(int((self.kind == CONSTANT).sum()), "{} constant, set to 0"),
        ]
        return "features: " + "; ".join(text for text in said if text)

    def clipped(self, x: Any) -> int:
        """Counts the values of a table that lie more than `LIMIT` deviations from the mean."""
        numbers = np.flatnonzero((self.kind == NUMBER) | (self.kind == LOGARITHM))
        if not len(numbers):
            return 0
        unit, shift = self.unit[numbers].astype(float), self.shift[numbers].astype(float)
        factor, found = self.factor[numbers].astype(float), 0
        for block in Rows(x).blocks(max(1, _BLOCK // x.shape[1])):
            some = block[:, numbers]
            dense = some.toarray() if scipy.sparse.issparse(some) else some
            scaled = (logarithm(np.asarray(dense, np.float64), unit) - shift) * factor
            found += int((np.abs(scaled) > LIMIT).sum())
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Returns the arrays as a run keeps them."""
        return {name: torch.from_numpy(array.copy()) for name, array in vars(self).items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], num_features: int) -> "ColumnScaling":
        """Reads what `tensors` returned; the file that they come from may be damaged.

        Raises:
            RunError: a part is missing, or has a wrong type, size or value.
        """
        wanted = dict.fromkeys(("unit", "shift", "factor"), torch.float32)
        wanted["kind"] = torch.uint8
        for name, dtype in wanted.items():
            found = tensors.get(name)
            if found is None or found.dtype != dtype or found.shape != (num_features,):
                raise RunError(f"{name} must be {dtype} of {num_features} columns")
            demand(
                bool(torch.isfinite(found.float()).all()),
                f"{name} holds a number that is not finite",
                RunError,
            )
        demand(
            int(tensors["kind"].max()) <= CONSTANT and float(tensors["unit"].min()) >= 0,
            "kind or unit is out of range",
            RunError,
        )
        return cls(**{name: tensors[name].numpy() for name in ("kind", "unit", "shift", "factor")})


TableScaling = str | ColumnScaling  # of one table: a word, or what ``auto`` has found


@dataclass(frozen=True)
class Scaling:
    """How the features of each type, and the vectors of each relation's edges, are scaled.

    Attributes:
        nodes: by type; a type that is missing is not scaled, as one that got the means of its
            neighbours' features, which are scaled already.
        edges: by relation; likewise.
    """

    nodes: Mapping[str, TableScaling] = field(default_factory=dict)
    edges: Mapping[Key, TableScaling] = field(default_factory=dict)

    @property
    def table(self) -> "TableScaling | Scaling":
        """How the features of a plain graph are scaled; of other graphs, all of it."""
        return self.nodes[NODE] if list(self.nodes) == [NODE] and not self.edges else self

    def _fitted(self) -> dict[str, ColumnScaling]:
        """Returns what ``auto`` has found, by the name that a run keeps it under."""
        named = {f"nodes/{name}": one for name, one in self.nodes.items()}
        named |= {f"edges/{':'.join(key)}": one for key, one in self.edges.items()}
        return {name: one for name, one in named.items() if isinstance(one, ColumnScaling)}

    def describe(self) -> list[str]:
        """Returns a line for each table that is scaled by what it holds."""
        if isinstance(self.table, ColumnScaling):
            return [self.table.describe()]
        said = {"nodes": "type", "edges": "relation"}
        lines = []
        for named, one in self._fitted().items():
            kind, _, name = named.partition("/")
            lines.append(f"{said[kind]} {name}: {one.describe()}")
        return lines

    def tensors(self) -> dict[str, Tensor]:
        """Returns the statistics as a run keeps them."""
        return {
            f"{name}/{part}": tensor
            for name, one in self._fitted().items()
            for part, tensor in one.tensors().items()
        }

    @classmethod
    def read(cls, word: str, schema: Schema, tensors: Mapping[str, Tensor]) -> Self:
        """Returns how a recipe's `word` scales a graph, for ``auto`` by what `tensors` returned.

        Raises:
            RunError: a part is missing, or has a wrong type, size or value.
        """

        def table(name: str, width: int) -> TableScaling:
            if word != "auto":
                return word
            start = f"{name}/"
            named = [key for key in tensors if key.startswith(start)]
            own = {key.removeprefix(start): tensors[key] for key in named}
            try:
                return ColumnScaling.from_tensors(own, width)
            except RunError as error:
                raise RunError(f"{name}: {error}") from None

        types = [one for one in schema.types if one.filled != "neighbours"]
        nodes = {one.name: table(f"nodes/{one.name}", one.num_features) for one in types}
        if word != "auto":
            return cls(nodes)
        vectors = [one for one in schema.relations if one.num_edge_features and one.num_edges]
        named = {one.key: (f"edges/{':'.join(one.key)}", one.num_edge_features) for one in vectors}
        return cls(nodes, {key: table(*about) for key, about in named.items()})


def _said(count: int, text: str) -> str:
    return text.format(f"{count:,} column{'' if count == 1 else 's'}") if count else ""


def fit_tables(feature_scaling: str, tables: Sequence[Rows], share: Share = ALONE) -> TableScaling:
    """Returns `feature_scaling` itself, or for ``auto`` what the tables' columns ask for."""
    return scale_columns(tables, share) if feature_scaling == "auto" else feature_scaling


def scale_columns(tables: Sequence[Rows], share: Share = ALONE) -> ColumnScaling:
    """Decides for each column, by the rules above.

    Of several processes that `share` the rows of a graph, each passes its own; all of them get the
    same answer, that of one process with all rows, to the order of sums in float64.
    """
    facts = ColumnFacts.of(tables, share)
    kind = np.full(len(facts.low), KEPT, np.uint8)
    words = _words(facts)
    kind[words] = WORD
    kind[~words & (facts.low == facts.high)] = CONSTANT
    kind[~words & (facts.low < facts.high) & ~facts.binary] = NUMBER
    unit, shift, factor = np.zeros((3, len(kind)))
    factor[:] = 1
    numbers = np.flatnonzero(kind == NUMBER)
    if len(numbers):
        found = _numbers(tables, facts, numbers, share)
        kind[numbers], unit[numbers], shift[numbers], factor[numbers] = found
    factor[kind == WORD] = np.sqrt(max(1, np.isin(kind, (NUMBER, LOGARITHM)).sum()))
    factor[kind == CONSTANT] = 0
    for array in (unit, shift):
        array[kind == CONSTANT] = 0
    if any(scipy.sparse.issparse(table.x) for table in tables):
        shift[:] = 0
    return ColumnScaling(kind, *(array.astype(np.float32) for array in (unit, shift, factor)))


def _words(facts: ColumnFacts) -> Booleans:
    """Says which columns are words: many or none."""
    positive, none = facts.low >= 0, np.zeros(len(facts.low), np.bool_)
    rare = positive & (facts.binary | (facts.filled <= MOST_FILLED * facts.rows))
    typical = facts.size / np.maximum(facts.filled, 1)  # of the values that are not zero
    used = rare & (facts.filled > 0)
    if not used.any():
        return none
    usual = float(np.median(typical[used]))
    alike = (typical >= usual / WORD_SIZE) & (typical <= usual * WORD_SIZE)
    small = facts.size <= SMALL_PART * facts.size[rare & (facts.binary | alike)].sum()
    rare &= facts.binary | alike | small
    per_row = facts.filled[rare].sum() / max(1, facts.rows)
    if rare.sum() < LEAST_WORDS or per_row < WORDS_PER_ROW:
        return none
    common = positive & alike & (facts.low < facts.high)
    if facts.whole[rare].all():
        common &= facts.whole  # beside counts, a fraction is no word
    return np.asarray(rare | common)


def _numbers(
    tables: Sequence[Rows], facts: ColumnFacts, numbers: Integers, share: Share
) -> tuple[Array, ...]:
    """Returns kind, unit, shift and factor of the columns of numbers."""
    mean, size = facts.total[numbers] / facts.rows, facts.size[numbers] / facts.rows
    own = Moments.of(tables, numbers, np.zeros(len(numbers)), mean, share)
    # Small numbers are measured in their own mean: of them log(1 + x) would be x itself.
    unit = np.minimum(1.0, size)
    logs = Moments.of(tables, numbers, unit, logarithm(mean, unit), share)
    heavy = (own.kurtosis > HEAVY) & (logs.kurtosis < own.kurtosis)
    largest = np.maximum(np.abs(facts.low[numbers]), np.abs(facts.high[numbers]))
    constant = own.deviation <= CONSTANT_SPREAD * largest
    deviation = np.where(heavy, logs.deviation, own.deviation)
    return (
        np.where(constant, CONSTANT, np.where(heavy, LOGARITHM, NUMBER)),
        np.where(heavy, unit, 0),
        np.where(heavy, logs.mean, own.mean),
        1 / np.where(deviation > 0, deviation, 1),
    )
