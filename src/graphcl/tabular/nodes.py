"""Decides what the columns of a node table become, from what they hold.

Everything that is wrong is found before anything is refused. For a table that a model reads after
its training nothing is decided: see `graphcl.tabular.prepared`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from graphcl.tabular import cells
from graphcl.tabular.columns import refusal
from graphcl.tabular.duck import Duck, literal, quoted
from graphcl.tabular.features import NodeFeatures
from graphcl.tabular.formats import Written, find_codes, find_dates, find_decimals
from graphcl.tabular.kinds import FEW_MISSING, TRAINING, Other
from graphcl.tabular.node_table import NodeTable
from graphcl.tabular.numbers import Numbers
from graphcl.tabular.options import TableOptions, counted
from graphcl.tabular.preparation import CATEGORY, DATE, DURATION, NUMBER, Column, Preparation
from graphcl.tabular.problems import Problem, shell, short

OTHER_COLUMNS = 200  # that a table of the session holds
_FILLED = (NUMBER, DATE, DURATION)  # kinds whose missing values become the training's mean


class Fitting:
    """Decides what the columns of a node table become.

    Args:
        duck: the session.
        table: the node table.
        options: how to fill in missing values, and what columns are.
        used: columns that are not features: id, labels, split and ignored ones.
        given: what the caller says of columns, by name.
        training: the rows that statistics are taken from; None means all.
        session: how the names of its tables and files in the session begin.
        leaks: look for columns that are named like a label or a split, and refuse them.

    Attributes:
        columns: what the columns become, in the features' order.
        features: the features; their arrays are complete only if there is no problem.
        problems: what is wrong.
        notes: what was decided, filled in and left out.
        empty: columns without a value, which are left out.
        filled: number of missing values that were filled in.
        missing: number of missing values, by column.
    """

    def __init__(
        self,
        duck: Duck,
        table: NodeTable,
        options: TableOptions,
        *,
        used: set[str],
        given: dict[str, str],
        training: npt.NDArray[np.bool_] | None = None,
        session: str = "node_",
        leaks: bool = True,
    ) -> None:
        self._session = session
        self._duck, self._table, self._source = duck, table, table.source
        self._options, self._training = options, training
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.empty: list[str] = []
        self._void: set[str] = set()  # the same, also where they are refused
        self.filled = 0
        self._arrays: dict[str, npt.NDArray[np.float32]] = {}
        self.missing: dict[str, int] = {}
        self._missing: list[tuple[str, int, int]] = []  # column, count, first row
        self._refused: set[str] = set()  # columns that can be read in two ways
        self._zeros = 0  # missing values that have no mean
        self._others: dict[str, Other] = {}
        names = [name for name in self._source.columns if name not in used]
        if leaks:
            names = [name for name in names if not self._leaks(name)]
        found = self._look(names, given)
        self.columns = [found[name] for name in names if name in found]
        self._refuse_missing()
        self.missing = {column.name: column.missing for column in self.columns}
        self._say_filled()
        missing = "zero" if options.missing == "zero" else "mean"
        preparation = Preparation(tuple(self.columns), missing, arrays=self._arrays)
        self.features = NodeFeatures(preparation, self._source, self._numbers, self._others)

    # Looking

    def _look(self, names: Sequence[str], given: dict[str, str]) -> dict[str, Column]:
        """Returns what columns become, and notes what is wrong with others."""
        texts = [name for name in names if cells.is_written(self._source, name)]
        if self._options.decimal:
            self._write(self._find(find_decimals, [name for name in texts if name not in given]))
        file = self._duck.folder / f"{self._session}numbers"
        plain = [name for name in names if name not in given and self._may_be_number(name)]
        self._numbers = Numbers(self._table, plain, file, training=self._training)
        if not self._options.decimal and self._source.untyped:
            # Few columns are not plain numbers, and only they are looked at.
            facts = self._numbers.facts
            unlike = [one for one in plain if facts.wrong[self._numbers.place(one)]]
            written = self._find(find_decimals, unlike)
            self._write(written)
            if written:
                self._numbers = Numbers(self._table, plain, file, training=self._training)
        columns: dict[str, Column] = {}
        facts, mean = self._numbers.facts, self._numbers.facts.mean
        doubtful: list[str] = []
        for name in plain:
            place = self._numbers.place(name)
            absent, wrong = int(facts.absent[place]), int(facts.wrong[place])
            if absent == facts.rows > 0:
                self._note_empty(name)
            elif wrong:
                doubtful.append(name)
            else:
                if absent:
                    self._missing.append((name, absent, int(facts.first_absent[place])))
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
        whole = [name for name in columns if name in texts and not self._source.decimals.get(name)]
        for name, code in find_codes(self._duck, self._source, whole).items():
            self.notes.append(
                f"{self._source.name}: column {name!r}: {code} is read as a number; if these are "
                f"codes: --one-hot {shell(name)}"
            )
        typos = []
        for name in doubtful:
            place = self._numbers.place(name)
            numbers = facts.rows - int(facts.absent[place]) - int(facts.wrong[place])
            if numbers >= (facts.rows - int(facts.absent[place])) / 2:
                typos.append(name)
        settled = {*columns, *self._void, *self._refused}
        self._write(
            self._find(
                find_dates,
                [
                    name
                    for name in texts
                    if name not in settled and name not in typos and given.get(name, DATE) == DATE
                ],
            )
        )
        settled |= self._refused
        names = [name for name in names if name not in self._refused]
        typos = [name for name in typos if name not in self._refused]
        self._open_others([name for name in names if name in given or name not in settled])
        for name in typos:
            other = self._others[name]
            row, cell = other.first(f"{cells.number(self._source, name)} IS NULL")
            self.problems.append(
                Problem(
                    f"{self._source.name}: row {row}, column {name!r}: {short(cell)} is not a "
                    f"number; correct it, or leave the column out with --ignore {shell(name)}",
                    ("--ignore", name),
                )
            )
        for name in names:
            if name not in columns and name not in typos and name in self._others:
                found = self._decide(name, given.get(name, ""))
                if found is not None:
                    columns[name] = found
        return columns

    def _find(self, find: Callable[..., Written], names: Sequence[str]) -> Written:
        """Finds how columns are written; one that is a problem is looked at no more."""
        if not names:
            return Written()
        options = self._options
        said = options.decimal if find is find_decimals else options.date_format
        found = find(self._duck, self._source, names, said, strict=options.strict)
        self.problems += found.problems
        self._refused |= found.columns
        return found

    def _write(self, found: Written) -> None:
        """Reads columns as they are written from now on, and says so."""
        for name, form in (*found.decimals.items(), *found.dates.items()):
            what = "numbers with the decimal mark" if name in found.decimals else "dates written"
            self.notes.append(f"{self._source.name}: column {name!r}: {what} {form!r}")
        if found:
            self._source = replace(
                self._source,
                decimals={**self._source.decimals, **found.decimals},
                dates={**self._source.dates, **found.dates},
            )
            self._table = NodeTable(self._duck, self._source)

    def _decide(self, name: str, kind: str) -> Column | None:
        """Returns what a column that is not numbers becomes, or notes the problem with it."""
        other, strict = self._others[name], self._options.strict
        rows, missing = other.missing()
        if missing == rows and not kind:
            self._note_empty(name)
            return None
        chosen = kind or other.plain_kind()
        said = chosen in (CATEGORY, DATE) and not kind and name not in self._source.dates
        if not chosen or (strict and said and chosen == CATEGORY):
            self.problems.append(other.problem())
            return None
        if strict and said and cells.kind_of_type(self._source.columns[name]) != DATE:
            self.problems.append(
                Problem(
                    f"{self._source.name}: column {name!r} holds dates: read it with --date "
                    f"{shell(name)}, or leave the column out with --ignore {shell(name)}",
                    ("--date", name),
                )
            )
            return None
        fitted = other.fit(chosen, missing)
        form = self._options.date_format
        if isinstance(fitted, Problem) and chosen == DATE and form:  # told by what the caller says
            written = replace(self._source, dates={**self._source.dates, name: form})
            fitted = replace(other, source=written).fit(chosen, missing)
        if isinstance(fitted, Problem):
            self.problems.append(fitted)
            return None
        column, arrays = fitted
        column = replace(column, date_format=self._source.dates.get(name, ""))
        self._arrays |= arrays
        if missing:
            first = self._duck.row(
                f"SELECT min(rowid) FROM {quoted(other.table)} WHERE "
                f"{cells.absent(self._source, name)}"
            )[0]
            if chosen in _FILLED or self._policy == "refuse":
                self._missing.append((name, missing, int(first)))
            else:
                self._zeros += missing
        if self._options.missing == "zero":
            column = replace(column, fill=0.0)
        return column

    def _may_be_number(self, name: str) -> bool:
        text = cells.is_text(self._source, name)
        return text or cells.kind_of_type(self._source.columns[name]) == NUMBER

    def _open_others(self, names: Sequence[str]) -> None:
        """Copies columns that are not numbers into tables of the session."""
        split = self._options.split
        for start in range(0, len(names), OTHER_COLUMNS):
            block, table = names[start : start + OTHER_COLUMNS], f"{self._session}others_{start}"
            fitted = self._training is not None and split is not None
            flag = ""
            if fitted and split is not None:
                words = f"lower(trim({quoted(split)}::VARCHAR)) IN ('train', 'training')"
                flag = f", coalesce({words}, false) AS {quoted(TRAINING)}"
            picked = ", ".join(quoted(name) for name in block)
            self._duck.run(
                f"CREATE TABLE {table} AS SELECT {picked}{flag} FROM {self._source.relation}",
                where=self._source.name,
            )
            for name in block:
                self._others[name] = Other(self._duck, self._source, name, table, fitted)

    # What is wrong, and what was done about it

    @property
    def _policy(self) -> str:
        """``refuse``, ``zero``, ``mean``, or ``auto``: the mean where few values are missing."""
        missing = self._options.missing
        return "refuse" if missing == "auto" and self._options.strict else missing

    def _leaks(self, name: str) -> bool:
        """Notes a column that looks like a label or a split: as a feature it would leak."""
        found = refusal(self._source, name)
        if found:
            self.problems.append(Problem(*found))
        return found is not None

    def _note_empty(self, name: str) -> None:
        self._void.add(name)
        if self._options.strict:
            self.problems.append(
                Problem(
                    f"{self._source.name}: column {name!r} has no values; leave the column out "
                    f"with --ignore {shell(name)}",
                    ("--ignore", name),
                )
            )
        else:
            self.empty.append(name)

    def _note_unfit(self, name: str, row: int) -> None:
        number = f"TRY_CAST({cells.plain(self._source, name)} AS DOUBLE)"
        largest = literal(str(float(np.finfo(np.float32).max)))
        found = self._duck.rows(
            f"SELECT {number} FROM {self._source.relation} WHERE NOT isnan({number}) AND "
            f"abs({number}) > {largest}::DOUBLE LIMIT 1",
            where=self._source.name,
        )
        value = found[0][0] if found else "a number"
        self.problems.append(
            Problem(
                f"{self._source.name}: row {row + 1}, column {name!r}: {value} does not fit in a "
                f"float32 feature; correct it, or leave the column out with --ignore {shell(name)}",
                ("--ignore", name),
            )
        )

    def _refuse_missing(self) -> None:
        rows = max(1, self._numbers.facts.rows or self._count())
        many = [
            one
            for one in self._missing
            if self._policy == "refuse" or (self._policy == "auto" and one[1] > FEW_MISSING * rows)
        ]
        self.filled = sum(count for _, count, _ in self._missing)
        if not many:
            return
        name, _, first = many[0]
        shown = ", ".join(f"{other!r} {count:,}" for other, count, _ in many[:5])
        more = f" and {len(many) - 5} more columns" if len(many) > 5 else ""
        self.problems.append(
            Problem(
                f"{self._source.name}: row {first + 1}, column {name!r} is missing; missing "
                f"values: {shown}{more}; fill them with --missing zero or --missing mean, or leave "
                f"a column out with --ignore {shell(name)}",
                ("--missing", "mean"),
            )
        )

    def _count(self) -> int:
        return max((other.missing()[0] for other in self._others.values()), default=0)

    def _say_filled(self) -> None:
        if self.filled:
            filling = "zero" if self._options.missing == "zero" else "the mean"
            filled = counted(self.filled, "missing value")
            self.notes.append(f"nodes: {filled} filled with {filling}")
        if self._zeros:
            self.notes.append(f"nodes: {counted(self._zeros, 'missing value')} encoded as zeros")
        if self.empty:
            shown = ", ".join(map(repr, self.empty[:8])) + (", …" if len(self.empty) > 8 else "")
            left = counted(len(self.empty), "column has", "columns have")
            self.notes.append(f"nodes: {left} no values: {shown}: left out")
