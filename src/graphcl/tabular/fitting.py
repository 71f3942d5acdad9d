"""Decides what the columns of a table become, or applies what a training has decided.

`FitColumns` decides it from what the columns hold; everything that is wrong is found before
anything is refused. `ApplyColumns` reads a table that a model gets after its training, and nothing
is decided by it: every mean, category and origin is the training's. What the training has not seen
is said: unknown categories, empty columns, numbers far outside its range.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import counted, demand, option, suggestion
from graphcl.tabular import cells
from graphcl.tabular.columns import refusal
from graphcl.tabular.duck import Duck, quoted
from graphcl.tabular.features import ColumnFeatures, Numbers
from graphcl.tabular.kinds import DAY, FEW_MISSING, TRAINING, YEAR, NonNumericColumn
from graphcl.tabular.options import TableOptions
from graphcl.tabular.preparation import (
    CATEGORY,
    DATE,
    DURATION,
    NUMBER,
    TEXT,
    VECTOR,
    Column,
    Preparation,
    is_far,
)
from graphcl.tabular.report import ColumnOutcome, Problem, Usual, listed, short
from graphcl.tabular.sources import Source

COPIED_COLUMNS = 200  # that a table of the session holds
FEW_STEPS = 100  # of float32, between a column's least and greatest number, say little
KINDS = (("one_hot", CATEGORY), ("text", TEXT), ("date", DATE))  # what options say columns are
_FILLED = (NUMBER, DATE, DURATION)  # kinds whose missing values become the training's mean


def kinds_given(
    where: str, named: Callable[[str], Sequence[str]], used: Collection[str] = ()
) -> dict[str, str]:
    """Returns what options say that columns are, by column.

    Args:
        where: the table's name in messages.
        named: returns the columns that an option names.
        used: columns that are something else: id, labels, split.
    """
    ignored, given = named("ignore"), dict[str, str]()
    for keyword, kind in KINDS:
        for name in named(keyword):
            if name in ignored:  # as a message proposed, after the other option
                continue
            demand(
                name not in used and name not in given,
                f"{where}: {option(keyword)}: column {name!r} is already used",
            )
            given[name] = kind
    return given


class _Columns:
    """The columns of a table that become features.

    Attributes:
        features: the features; None where there are problems.
        problems: what is wrong.
        notes: what was decided, filled in, left out, or new to the model.
        empty: columns without a value, which are left out.
        filled: number of missing values that are filled in.
        missing: number of missing values, by column.
    """

    def __init__(self, duck: Duck, source: Source, session: str) -> None:
        self._duck, self._source, self._session = duck, source, session
        self._others: dict[str, NonNumericColumn] = {}
        self.features: ColumnFeatures | None = None
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.empty: list[str] = []
        self.filled = 0
        self.missing: dict[str, int] = {}

    def outcomes(self, names: Sequence[str], roles: Mapping[str, str]) -> list[ColumnOutcome]:
        """Returns what became of columns, in their order; `roles` say what others are."""
        columns = () if self.features is None else self.features.preparation.columns
        known = {
            one.name: ColumnOutcome(
                one.name, one.describe(), len(one.features), self.missing.get(one.name, 0)
            )
            for one in columns
        }
        others = {**roles, **dict.fromkeys(self.empty, "empty: left out")}
        return [known.get(one) or ColumnOutcome(one, others.get(one, "left out")) for one in names]

    def _wrong(self, message: str, fix: tuple[str, str] | tuple[()] = ()) -> None:
        self.problems.append(Problem(f"{self._source.name}: {message}", fix))

    def _leave(self, message: str, name: str) -> None:
        """Notes a problem that is settled by leaving a column out."""
        self._wrong(f"{message} {option('ignore', name)}", ("ignore", name))

    def _read_numbers(
        self, names: Sequence[str], training: npt.NDArray[np.bool_] | None = None
    ) -> Numbers:
        file = self._duck.folder / f"{self._session}numbers"
        return Numbers(self._duck, self._source, names, file, training=training)

    def _say_filled(self, filling: str) -> None:
        if self.filled:
            self.notes.append(
                f"nodes: {counted(self.filled, 'missing value')} filled with {filling}"
            )

    def _say_of(self, names: Sequence[str], what: str) -> None:
        """Notes what several columns have, if there are any; ``{}`` stands for their names."""
        if names:
            which = counted(len(names), "column has", "columns have")
            shown = listed([repr(name) for name in names])
            self.notes.append(f"nodes: {which} {what.replace('{}', shown)}")

    def _copy(self, names: Sequence[str], flag: str = "") -> None:
        """Copies columns that are not numbers into tables of the session.

        `flag` is an SQL condition on the rows that statistics are taken from.
        """
        marked = f", coalesce({flag}, false) AS {quoted(TRAINING)}" if flag else ""
        for start in range(0, len(names), COPIED_COLUMNS):
            block = names[start : start + COPIED_COLUMNS]
            table = f"{self._session}others_{len(self._others)}"
            self._duck.run(
                f"CREATE TABLE {table} AS SELECT {', '.join(map(quoted, block))}{marked} "
                f"FROM {self._source.relation}",
                where=self._source.name,
            )
            for name in block:
                self._others[name] = NonNumericColumn(
                    self._duck, self._source, name, table, bool(flag)
                )


class FitColumns(_Columns):
    """Decides what the columns of a table become.

    Args:
        duck: the session.
        source: the table.
        options: how to fill in missing values, and what columns are.
        used: columns that are not features: id, labels, split and ignored ones.
        given: what the caller says of columns, by name.
        training: the rows that statistics are taken from; None means all.
        session: how the names of its tables and files in the session begin.
        leaks: look for columns that are named like a label or a split, and refuse them.
    """

    def __init__(
        self,
        duck: Duck,
        source: Source,
        options: TableOptions,
        *,
        used: set[str],
        given: dict[str, str],
        training: npt.NDArray[np.bool_] | None = None,
        session: str = "node_",
        leaks: bool = True,
    ) -> None:
        super().__init__(duck, source, session)
        self._options, self._training = options, training
        self._void: set[str] = set()  # columns without a value, also where they are refused
        self._arrays: dict[str, npt.NDArray[np.float32]] = {}
        self._holes: list[tuple[str, int, int]] = []  # column, missing values, first row
        self._refused: set[str] = set()  # columns that can be read in two ways
        self._zeros = 0  # missing values that have no mean
        names = [name for name in self._source.columns if name not in used]
        if leaks:  # a column that looks like a label or a split: as a feature it would leak
            refused = {name: one for name in names if (one := refusal(self._source, name))}
            self.problems += refused.values()
            names = [name for name in names if name not in refused]
        found = self._look(names, given)
        columns = tuple(found[name] for name in names if name in found)
        self._refuse_missing()
        self.missing = {column.name: column.missing for column in columns}
        self._say_left()
        missing = "zero" if options.missing == "zero" else "mean"
        preparation = Preparation(columns, missing, arrays=self._arrays)
        self.features = ColumnFeatures(preparation, self._source, self._numbers, self._others)

    # Looking

    def _look(self, names: Sequence[str], given: dict[str, str]) -> dict[str, Column]:
        """Returns what columns become, and notes what is wrong with others."""
        texts = [name for name in names if cells.is_written(self._source, name)]
        if self._options.decimal:
            self._find("decimal", [name for name in texts if name not in given])
        plain = [
            one for one in names if one not in given and cells.may_be_number(self._source, one)
        ]
        self._numbers = self._read_numbers(plain, self._training)
        if not self._options.decimal and self._source.untyped:
            # Few columns are not plain numbers, and only they are looked at.
            wrong = self._numbers.facts.wrong
            if self._find("decimal", [one for one in plain if wrong[self._numbers.place(one)]]):
                self._numbers = self._read_numbers(plain, self._training)
        columns, typos = self._look_at_numbers(plain)
        whole = [name for name in columns if name in texts and not self._source.decimals.get(name)]
        for name, odd in cells.find_odd_numbers(self._duck, self._source, whole).items():
            self.notes.append(f"{self._source.name}: column {name!r}: {odd}")
        settled = {*columns, *self._void, *self._refused, *typos}
        dated = [one for one in texts if one not in settled and given.get(one, DATE) == DATE]
        self._find("date_format", dated)
        names = [name for name in names if name not in self._refused]
        settled = {*columns, *self._void} - given.keys()
        split, flag = self._options.split, ""
        if self._training is not None and split is not None:
            flag = f"lower(trim({quoted(split)}::VARCHAR)) IN ('train', 'training')"
        self._copy([name for name in names if name not in settled], flag)
        for name in names:
            other = self._others.get(name)
            if other is not None and name in typos:
                row, cell = other.first(f"{cells.number(self._source, name)} IS NULL")
                self._leave(
                    f"row {row}, column {name!r}: {short(cell)} is not a number; correct it, or "
                    "leave the column out with",
                    name,
                )
            elif other is not None and name not in columns:
                columns |= self._decide(other, given.get(name, ""))
        return columns

    def _look_at_numbers(self, names: Sequence[str]) -> tuple[dict[str, Column], set[str]]:
        """Returns the columns of numbers, and those of numbers but for a few cells."""
        columns: dict[str, Column] = {}
        typos: set[str] = set()
        facts, mean = self._numbers.facts, self._numbers.facts.mean
        for name in names:
            place = self._numbers.place(name)
            absent, wrong = int(facts.absent[place]), int(facts.wrong[place])
            there = facts.rows - absent
            if there == 0 < facts.rows:
                self._note_empty(name)
                continue
            if wrong:
                if there - wrong >= there / 2:
                    typos.add(name)
                continue
            if absent:
                self._holes.append((name, absent, int(facts.first_absent[place])))
            if facts.unfit[place] >= 0:
                self._note_unfit(name, int(facts.unfit[place]))
            known = facts.known[place] > 0
            columns[name] = Column(
                name,
                NUMBER,
                (name,),
                fill=float(mean[place]) if self._options.missing != "zero" else 0.0,
                low=float(facts.low[place]) if known else 0.0,
                high=float(facts.high[place]) if known else 0.0,
                missing=absent,
                decimal=self._source.decimals.get(name, ""),
            )
            if facts.unfit[place] < 0:
                self._note_close(columns[name])
        return columns, typos

    def _note_close(self, column: Column) -> None:
        """Says that numbers far from 0 lie so close together that a feature is hardly varied."""
        low, high = column.low, column.high
        step = float(np.spacing(np.float32(max(-low, high))))
        if 0 < high - low < FEW_STEPS * step:
            self.notes.append(
                f"{self._source.name}: column {column.name!r}: numbers from {low:.17g} to "
                f"{high:.17g} are rounded to multiples of {step:g}, as features are float32; "
                f"subtract {low:.17g}, or leave the column out with {option('ignore', column.name)}"
            )

    def _find(self, kind: str, names: Sequence[str]) -> bool:
        """Finds how columns are written, reads them so from now on, and says it.

        A column that is a problem is looked at no more. Returns whether any is written in another
        than the plain way.
        """
        options, said = self._options, getattr(self._options, kind)
        forms, wrong = cells.find_forms(
            self._duck, self._source, kind, names, said, strict=options.strict
        )
        self.problems += wrong.values()
        self._refused |= wrong.keys()
        what = "dates written" if kind == "date_format" else "numbers with the decimal mark"
        for name, form in forms.items():
            line = f"{self._source.name}: column {name!r}: {what} {form!r}"
            self.notes.append(Usual(line) if said else line)
        attribute = "dates" if kind == "date_format" else "decimals"
        known: dict[str, Any] = {attribute: {**getattr(self._source, attribute), **forms}}
        self._source = replace(self._source, **known)
        return bool(forms)

    def _decide(self, other: NonNumericColumn, kind: str) -> dict[str, Column]:
        """Returns what a column that is not numbers becomes, or notes the problem with it."""
        name, strict = other.name, self._options.strict
        rows, missing = other.missing()
        if missing == rows and not kind:
            self._note_empty(name)
            return {}
        chosen = kind or other.plain_kind()
        said = chosen in (CATEGORY, DATE) and not kind and name not in self._source.dates
        if not chosen or (strict and said and chosen == CATEGORY):
            self.problems.append(other.problem())
            return {}
        if strict and said and cells.kind_of_type(self._source.columns[name]) != DATE:
            self._wrong(
                f"column {name!r} holds dates: read it with {option('date', name)}, or leave the "
                f"column out with {option('ignore', name)}",
                ("date", name),
            )
            return {}
        fitted = other.fit(chosen, missing)
        form = self._options.date_format
        if isinstance(fitted, Problem) and chosen == DATE and form:  # told by what the caller says
            written = replace(self._source, dates={**self._source.dates, name: form})
            fitted = replace(other, source=written).fit(chosen, missing)
        if isinstance(fitted, Problem):
            self.problems.append(fitted)
            return {}
        column, arrays = fitted
        self._arrays |= arrays
        if missing and (chosen in _FILLED or self._policy == "refuse"):
            absent = cells.absent(self._source, name)
            ((first, _),) = self._duck.first(quoted(other.table), absent)
            self._holes.append((name, missing, first - 1))
        else:
            self._zeros += missing
        fill = 0.0 if self._options.missing == "zero" else column.fill
        return {name: replace(column, fill=fill, date_format=self._source.dates.get(name, ""))}

    # What is wrong, and what was done about it

    @property
    def _policy(self) -> str:
        """``refuse``, ``zero``, ``mean``, or ``auto``: the mean where few values are missing."""
        missing = self._options.missing
        return "refuse" if missing == "auto" and self._options.strict else missing

    def _note_empty(self, name: str) -> None:
        self._void.add(name)
        if self._options.strict:
            self._leave(f"column {name!r} has no values; leave the column out with", name)
        else:
            self.empty.append(name)

    def _note_unfit(self, name: str, row: int) -> None:
        number = f"TRY_CAST({cells.plain(self._source, name)} AS DOUBLE)"
        values = f"SELECT {number} AS value FROM {self._source.relation}"
        largest = f"{float(np.finfo(np.float32).max)}::DOUBLE"
        (value,) = self._duck.row(
            f"SELECT any_value(value) FROM ({values}) WHERE NOT isnan(value) AND "
            f"abs(value) > {largest}",
            where=self._source.name,
        )
        self._leave(
            f"row {row + 1}, column {name!r}: {value} does not fit in a float32 feature; correct "
            "it, or leave the column out with",
            name,
        )

    def _refuse_missing(self) -> None:
        others = (one.missing()[0] for one in self._others.values())
        few = FEW_MISSING * max(1, self._numbers.facts.rows or next(others, 0))
        many = [
            one
            for one in self._holes
            if self._policy == "refuse" or (self._policy == "auto" and one[1] > few)
        ]
        self.filled = sum(count for _, count, _ in self._holes)
        if not many:
            return
        name, _, first = many[0]
        shown = ", ".join(f"{other!r} {count:,}" for other, count, _ in many[:5])
        more = f" and {len(many) - 5} more columns" if len(many) > 5 else ""
        self._wrong(
            f"row {first + 1}, column {name!r} is missing; missing values: {shown}{more}; fill "
            f"them with {option('missing', 'zero')} or {option('missing', 'mean')}, or leave a "
            f"column out with {option('ignore', name)}",
            ("missing", "mean"),
        )

    def _say_left(self) -> None:
        self._say_filled("zero" if self._options.missing == "zero" else "the mean")
        if self._zeros:
            self.notes.append(f"nodes: {counted(self._zeros, 'missing value')} encoded as zeros")
        self._say_of(self.empty, "no values: {}: left out")


class ApplyColumns(_Columns):
    """Reads the columns of a table as a preparation says.

    Args:
        duck: the session.
        source: the table.
        preparation: what the columns become.
        session: how the names of its tables and files in the session begin.
    """

    def __init__(
        self, duck: Duck, source: Source, preparation: Preparation, session: str = "node_"
    ) -> None:
        columns = preparation.columns
        super().__init__(duck, cells.with_formats(source, columns), session)
        self._filling = "the training's mean" if preparation.missing == "mean" else "zero"
        for column in columns:
            if column.name not in self._source.columns:
                near = suggestion(column.name, self._source.columns)
                self._wrong(f"has no column {column.name!r}, which the model was trained on{near}")
            elif not self._readable(column):
                self._wrong(
                    f"column {column.name!r} is {self._source.columns[column.name]}; in training "
                    f"it was {column.kind}"
                )
        if self.problems:
            return
        plain = [column for column in columns if column.kind == NUMBER]
        numbers = self._read_numbers([column.name for column in plain])
        self._look_at_numbers(numbers, plain)
        others = [column for column in columns if column.kind != NUMBER]
        self._copy([column.name for column in others])
        for column in others:
            self._look_at(column, self._others[column.name])
        self.filled = sum(self.missing[one.name] for one in columns if one.kind in _FILLED)
        self._say_filled(self._filling)
        if not self.problems:
            self.features = ColumnFeatures(preparation, self._source, numbers, self._others)

    def _readable(self, column: Column) -> bool:
        """Returns whether the type of a column can hold what it held in training."""
        if cells.is_text(self._source, column.name):
            return column.kind != VECTOR
        kind = cells.kind_of_type(self._source.columns[column.name])
        written, moment = kind not in ("", VECTOR), kind in (column.kind, TEXT)
        fits = {CATEGORY: written, TEXT: written, DATE: moment, DURATION: moment}
        return fits.get(column.kind, kind == column.kind)

    def _look_at_numbers(self, numbers: Numbers, columns: Sequence[Column]) -> None:
        facts = numbers.facts
        empty, far = [], []
        for column in columns:
            name, place = column.name, numbers.place(column.name)
            if facts.wrong[place]:
                self._copy([name])
                self._refuse_cell(column, cells.number(self._source, name), "is not a number")
            if facts.unfit[place] >= 0:
                self._wrong(
                    f"row {int(facts.unfit[place]) + 1}, column {name!r}: does not fit in a "
                    "float32 feature"
                )
            if facts.absent[place] == facts.rows > 0:
                empty.append(name)
            self.missing[name] = int(facts.absent[place])
            low, high = float(facts.low[place]), float(facts.high[place])
            if facts.known[place] and is_far(column, low, high):
                worst = low if column.low - low > high - column.high else high
                far.append((column, worst))
        self._say_of(empty, f"no values and {self._filling} in every row: {{}}")
        for column, worst in far[:1]:
            seen = f"{column.name!r}: {worst:g}; in training {column.low:g} to {column.high:g}"
            self._say_of(
                [one.name for one, _ in far],
                f"numbers far outside the training's range: {{}} ({seen})",
            )

    def _refuse_cell(self, column: Column, sql: str, what: str) -> None:
        """Refuses the first cell that SQL cannot read, and says how such cells were written."""
        row, cell = self._others[column.name].first(f"{sql} IS NULL")
        mark = "1,5" if column.decimal == "," else "1.5"
        forms = {NUMBER: f"numbers were written {mark}"}
        forms[DATE] = f"dates were written {column.date_format or '2016-03-20'}"
        written = f"; in training {forms[column.kind]}" if column.kind in forms else ""
        self._wrong(f"row {row}, column {column.name!r}: {short(cell)} {what}{written}")

    def _look_at(self, column: Column, other: NonNumericColumn) -> None:
        """Notes what the training has not seen in a column that is not numbers."""
        rows, missing = other.missing()
        self.missing[column.name] = missing
        if missing == rows > 0:
            moment = column.kind in (DATE, DURATION)
            what = f"no values and {self._filling if moment else 'zeros'} in every row: {{}}"
            self._say_of([column.name], what)
        if column.kind == CATEGORY:
            new = [name for name in other.categories() if name not in column.categories]
            if new:
                are = counted(len(new), "category is", "categories are")
                shown = listed([short(name) for name in new], 3)
                self.notes.append(
                    f"nodes: {are} new to the model and encoded as zeros: {shown} in "
                    f"{column.name!r}"
                )
        elif column.kind == VECTOR:
            name = quoted(column.name)
            low, high = self._duck.row(
                f"SELECT min(len({name})), max(len({name})) FROM {other.table}"
            )
            if high is not None and not low == high == len(column.features):
                self._wrong(
                    f"column {column.name!r} has vectors of {low} to {high} numbers; in training "
                    f"they had {len(column.features)}"
                )
        elif column.kind in (DATE, DURATION):
            sql = other.expression(column.kind)
            low, high, read = self._duck.row(
                f"SELECT min({sql}), max({sql}), count({sql}) FROM {other.table}"
            )
            unit = YEAR if column.kind == DATE else DAY
            if read + missing < rows:
                self._refuse_cell(column, sql, f"is no {column.kind}")
            elif read and is_far(
                column, *((float(one) - column.origin) / unit for one in (low, high))
            ):
                self.notes.append(
                    f"nodes: column {column.name!r} has {column.kind}s far outside the "
                    "training's range"
                )
