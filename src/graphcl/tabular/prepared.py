"""Applies a preparation to a table that a model reads after its training.

Nothing is decided by the new table: every mean, category and origin is the training's. What the
training has not seen is said: unknown categories, empty columns, numbers far outside its range.
"""

from dataclasses import dataclass, field

from graphcl.errors import suggestion
from graphcl.tabular import cells
from graphcl.tabular.duck import Duck, quoted
from graphcl.tabular.features import NodeFeatures
from graphcl.tabular.formats import with_formats
from graphcl.tabular.kinds import DAY, YEAR, Other
from graphcl.tabular.node_table import NodeTable
from graphcl.tabular.numbers import Numbers
from graphcl.tabular.options import counted
from graphcl.tabular.preparation import (
    CATEGORY,
    DATE,
    DURATION,
    NUMBER,
    TEXT,
    VECTOR,
    Column,
    Preparation,
    Tags,
    Vectors,
)
from graphcl.tabular.problems import Problem, short

FAR = 1.0  # spans of the training's range: a value farther outside than this is far outside
_SHOWN = 8  # columns that notes name


@dataclass
class Applying:
    """Reads the columns of a node table as a preparation says.

    Attributes:
        duck: the session.
        table: the node table.
        preparation: what the columns become.
        session: how the names of its tables and files in the session begin.
        features: the features; None where there are problems.
        problems: what is wrong.
        notes: what the training has not seen.
        missing: number of missing values, by column.
        empty: columns that are left out because they have no value: none here.
    """

    duck: Duck
    table: NodeTable
    preparation: Preparation
    session: str = "node_"
    features: NodeFeatures | None = None
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    missing: dict[str, int] = field(default_factory=dict)
    empty: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        columns = self.preparation.columns
        self.table = NodeTable(self.duck, with_formats(self.table.source, columns))
        source = self.table.source
        for column in columns:
            if column.name not in source.columns:
                near = suggestion(column.name, source.columns)
                self._wrong(f"has no column {column.name!r}, which the model was trained on{near}")
            elif not self._readable(column):
                kind = source.columns[column.name]
                self._wrong(f"column {column.name!r} is {kind}; in training it was {column.kind}")
        if self.problems:
            return
        plain = [column.name for column in columns if column.kind == NUMBER]
        numbers = Numbers(self.table, plain, self.duck.folder / f"{self.session}numbers")
        self._look_at_numbers(numbers, plain)
        others = self._others([column for column in columns if column.kind != NUMBER])
        for column in columns:
            if column.kind != NUMBER:
                self._look_at(column, others[column.name])
        self._say_filled()
        if not self.problems:
            self.features = NodeFeatures(self.preparation, source, numbers, others)

    @property
    def filled(self) -> int:
        """Number of missing values that are filled in."""
        kinds = {column.name: column.kind for column in self.preparation.columns}
        numbers = (NUMBER, DATE, DURATION)
        return sum(count for name, count in self.missing.items() if kinds[name] in numbers)

    def _say_filled(self) -> None:
        if self.filled:
            filling = "the training's mean" if self.preparation.missing == "mean" else "zero"
            filled = counted(self.filled, "missing value")
            self.notes.append(f"nodes: {filled} filled with {filling}")

    def _wrong(self, message: str) -> None:
        self.problems.append(Problem(f"{self.table.source.name}: {message}"))

    def _readable(self, column: Column) -> bool:
        """Returns whether the type of a column can hold what it held in training."""
        source = self.table.source
        if cells.is_text(source, column.name):
            return column.kind not in (VECTOR, "time")
        kind = cells.kind_of_type(source.columns[column.name])
        if column.kind in (CATEGORY, TEXT):
            return kind not in ("", VECTOR)
        if column.kind in (DATE, DURATION):
            return kind in (column.kind, TEXT)
        return kind == column.kind

    def _look_at_numbers(self, numbers: Numbers, names: list[str]) -> None:
        source, facts = self.table.source, numbers.facts
        known = {column.name: column for column in self.preparation.columns}
        empty, far = [], []
        for name in names:
            column, place = known[name], numbers.place(name)
            if facts.wrong[place]:
                (other,) = self._others([column], "wrong").values()
                row, cell = other.first(f"{cells.number(source, name)} IS NULL")
                self._wrong(
                    f"row {row}, column {name!r}: {short(cell)} is not a number"
                    + _as_in_training(column)
                )
            if facts.unfit[place] >= 0:
                row = int(facts.unfit[place]) + 1
                self._wrong(f"row {row}, column {name!r}: does not fit in a float32 feature")
            if facts.absent[place] == facts.rows > 0:
                empty.append(name)
            self.missing[name] = int(facts.absent[place])
            low, high = facts.low[place], facts.high[place]
            if facts.known[place] and is_far(column, float(low), float(high)):
                worst = low if column.low - low > high - column.high else high
                far.append((name, column, float(worst)))
        self._say_empty(empty)
        if far:
            name, column, worst = far[0]
            which = counted(len(far), "column has", "columns have")
            listed = ", ".join(repr(name) for name, _, _ in far[:_SHOWN])
            self.notes.append(
                f"nodes: {which} numbers far outside the training's range: {listed}"
                f"{', …' if len(far) > _SHOWN else ''} ({name!r}: {worst:g}; in training "
                f"{column.low:g} to {column.high:g})"
            )

    def _say_empty(self, names: list[str]) -> None:
        if names:
            listed = ", ".join(map(repr, names[:_SHOWN])) + (", …" if len(names) > _SHOWN else "")
            which = counted(len(names), "column has", "columns have")
            filling = "the training's mean" if self.preparation.missing == "mean" else "zero"
            self.notes.append(f"nodes: {which} no values and {filling} in every row: {listed}")

    def _look_at(self, column: Column, other: Other) -> None:
        rows, missing = other.missing()
        self.missing[column.name] = missing
        if missing == rows > 0 and column.kind not in (DATE, DURATION):
            self.notes.append(f"nodes: column {column.name!r} has no values: zeros in every row")
        elif missing == rows > 0:
            self._say_empty([column.name])
        if column.kind == CATEGORY:
            self._say_unknown(column, other)
        elif column.kind == VECTOR:
            name = quoted(column.name)
            low, high = self.duck.row(
                f"SELECT min(len({name})), max(len({name})) FROM {other.table}"
            )
            if high is not None and not low == high == len(column.features):
                self._wrong(
                    f"column {column.name!r} has vectors of {low} to {high} numbers; in training "
                    f"they had {len(column.features)}"
                )
        elif column.kind in (DATE, DURATION):
            sql = other.expression(column.kind)
            low, high, read = self.duck.row(
                f"SELECT min({sql}), max({sql}), count({sql}) FROM {other.table}"
            )
            if read + missing < rows:
                row, cell = other.first(f"{sql} IS NULL")
                self._wrong(
                    f"row {row}, column {column.name!r}: {short(cell)} is no {column.kind}"
                    + _as_in_training(column)
                )
            elif read:
                unit = YEAR if column.kind == DATE else DAY
                first, last = ((float(one) - column.origin) / unit for one in (low, high))
                if is_far(column, first, last):
                    self.notes.append(
                        f"nodes: column {column.name!r} has {column.kind}s far outside the "
                        "training's range"
                    )

    def _say_unknown(self, column: Column, other: Other) -> None:
        new = [name for name in other.categories() if name not in column.categories]
        if new:
            are = counted(len(new), "category is", "categories are")
            listed = ", ".join(map(short, new[:3])) + (", …" if len(new) > 3 else "")
            self.notes.append(
                f"nodes: {are} new to the model and encoded as zeros: {listed} in {column.name!r}"
            )

    def _others(self, columns: list[Column], name: str = "other_rows") -> dict[str, Other]:
        """Copies columns that are not numbers into a table of the session."""
        if not columns:
            return {}
        source, name = self.table.source, f"{self.session}{name}"
        picked = ", ".join(quoted(column.name) for column in columns)
        self.duck.run(
            f"CREATE OR REPLACE TABLE {name} AS SELECT {picked} FROM {source.relation}",
            where=source.name,
        )
        return {one.name: Other(self.duck, source, one.name, name) for one in columns}


def _as_in_training(column: Column) -> str:
    """Says how the values of a column were written in training."""
    if column.kind == NUMBER:
        shown = "1.5" if column.decimal != "," else "1,5"
        return f"; in training numbers were written {shown}"
    if column.kind == DATE:
        shown = column.date_format or "2016-03-20"
        return f"; in training dates were written {shown}"
    return ""


def is_far(column: Column | Tags | Vectors, low: float, high: float) -> bool:
    """Returns whether a value lies more than `FAR` spans outside the training's range."""
    span = column.high - column.low
    # A constant column has no span; any other value is as far outside as can be.
    room = FAR * span if span > 0 else abs(column.high)
    return bool(low < column.low - room or high > column.high + room)
