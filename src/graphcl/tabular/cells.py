"""What a cell of a table says, as SQL: a number, a date, a duration, a text, or nothing.

In a format without types (CSV) every cell is text, and a column is what all of its cells can be
read as. In a typed format the column's type decides.

A column of texts is read alike from every format: texts from a CSV, from Parquet or from pandas
hold the same numbers.

Texts write numbers and dates in several ways: ``1.169,00`` or ``1,169.00``, ``20/03/2016`` or
``3/20/2016``. Which one it is, is said by an option, or guessed where all values of a column fit
one way alone. It is kept in the preparation, so tables that a model reads later are read alike.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from graphcl.errors import option
from graphcl.tabular.duck import Duck, literal, quoted
from graphcl.tabular.preparation import (
    CATEGORY,
    DATE,
    DURATION,
    NUMBER,
    TEXT,
    VECTOR,
    Column,
)
from graphcl.tabular.report import Problem, short
from graphcl.tabular.sources import Source

MARKS = (",", ".")  # that may stand before decimals; the other one then parts thousands
PERCENT = "%"  # behind the mark if numbers have this sign: ``25.2%`` is the number 25.2
PERCENT_MARKS = tuple(f"{mark}{PERCENT}" for mark in MARKS)
NO_VALUE = ("", "na", "n/a", "nan", "null", "none", "<na>", "-", "?")
# A pattern, because IN takes room for every word and column: hundreds of columns do not have it.
_NONE = literal(f"(?i) *({'|'.join(map(re.escape, NO_VALUE))}) *")
_NUMBERS = ("INT", "DOUBLE", "FLOAT", "DECIMAL", "BOOLEAN")
_NESTED = ("STRUCT", "MAP", "UNION")
_NO_TYPE = '"NULL"'  # of a column of a table in memory without a value
_TYPES = {NUMBER: "DOUBLE", CATEGORY: "VARCHAR", TEXT: "VARCHAR", DATE: "TIMESTAMP"}
_TYPES |= {DURATION: "INTERVAL", VECTOR: "FLOAT[]"}
_CLOCK = "'[0-9]{1,6}:[0-5][0-9](:[0-5][0-9](\\.[0-9]+)?)?'"
_UNITS = "'([0-9.]+ *(days?|hours?|minutes?|mins?|seconds?|secs?|weeks?) *)+'"
DATES = tuple(f"%{a}{mark}%{b}{mark}%Y" for mark in "/-" for a, b in (("d", "m"), ("m", "d")))
_COMMA = "comma"  # what else is counted of numbers
_COLUMNS = 500  # that one query looks at
_CODES = 10_000  # rows in which codes are looked for


def absent(source: Source, name: str) -> str:
    """Returns an SQL condition that is true for missing values."""
    column, kind = quoted(name), source.columns[name]
    if kind in ("FLOAT", "DOUBLE"):
        return f"({column} IS NULL OR isnan({column}))"
    if not is_text(source, name):
        return f"({column} IS NULL)"
    return f"({column} IS NULL OR regexp_full_match({column}, {_NONE}))"


def is_text(source: Source, name: str) -> bool:
    """Returns whether a column's values are read from texts."""
    return source.untyped or is_written(source, name)


def is_written(source: Source, name: str) -> bool:
    """Returns whether a column holds texts, which may write numbers or dates in some way."""
    return source.columns.get(name) == "VARCHAR"


def may_be_number(source: Source, name: str) -> bool:
    """Returns whether a column may hold numbers: by its type, or because its cells are texts."""
    return is_text(source, name) or kind_of_type(source.columns[name]) == "number"


def other_mark(mark: str) -> str:
    """Returns the mark that parts thousands where `mark` stands before decimals."""
    return MARKS[1 - MARKS.index(mark.removesuffix(PERCENT))]


def marked(mark: str) -> str:
    """Returns an SQL condition on ``{0}``: a number with this decimal mark, and perhaps ``%``."""
    sign = " *%" if mark.endswith(PERCENT) else ""
    mark = mark.removesuffix(PERCENT)
    other = other_mark(mark)
    whole = f"([0-9]{{1,3}}([{other}][0-9]{{3}})+|[0-9]+)"
    pattern = f"[+-]?({whole}([{mark}][0-9]*)?|[{mark}][0-9]+)([eE][+-]?[0-9]+)?{sign}"
    return f"regexp_full_match({{0}}, {literal(pattern)})"


def moment(cell: str, form: str) -> str:
    """Returns an SQL expression for the time stamp that a text is in a format; NULL if none."""
    timed = "%H" in form or "%I" in form
    forms = [form] if timed else [form, f"{form} %H:%M", f"{form} %H:%M:%S"]
    read = f"try_strptime({cell}, [{', '.join(map(literal, forms))}])"
    return f"CASE WHEN year({read}) >= 1000 THEN {read} END"


def plain(source: Source, name: str) -> str:
    """Returns an SQL expression for a text in which a number is written as computers do."""
    column, mark = quoted(name), source.decimals.get(name)
    if mark is None:
        return column
    fits = marked(mark).replace("{0}", f"trim({column})")
    point = mark.removesuffix(PERCENT)
    bare = f"replace(replace({column}, {literal(other_mark(mark))}, ''), {literal(point)}, '.')"
    if mark.endswith(PERCENT):
        return f"CASE WHEN {fits} THEN rtrim(replace({bare}, '%', '')) ELSE {column} || '%' END"
    # A number that is written in the other way is none.
    return (
        f"CASE WHEN {fits} THEN {bare} WHEN TRY_CAST({column} AS DOUBLE) IS NULL THEN {column} END"
    )


def kind_of_type(kind: str) -> str:
    """Returns what a typed column is: number, date, duration, vector, text; or empty."""
    if kind.endswith("]"):  # a list of numbers; not one of lists, or of STRUCT(a INTEGER)
        of, plain_list = kind.rpartition("[")[0], not kind.startswith(_NESTED)
        flat = plain_list and not of.endswith("]")
        return "vector" if flat and any(word in of for word in _NUMBERS[:-1]) else ""
    if kind == "DATE" or kind.startswith("TIMESTAMP"):
        return "date"
    if kind == "INTERVAL":
        return "duration"
    if kind in ("VARCHAR", "UUID") or kind.startswith("ENUM"):
        return "text"
    return (
        "number" if not kind.startswith(_NESTED) and any(word in kind for word in _NUMBERS) else ""
    )


def number(source: Source, name: str) -> str:
    """Returns an SQL expression for a number: NaN if it is missing, NULL if it is none."""
    column = quoted(name)
    if not is_text(source, name):
        return f"coalesce({column}::DOUBLE, 'nan'::DOUBLE)"
    # Most cells are numbers, and the rest of the expression is not computed for them.
    return (
        f"coalesce(TRY_CAST({plain(source, name)} AS DOUBLE), CASE WHEN {absent(source, name)} "
        f"THEN 'nan'::DOUBLE ELSE CASE lower(trim({column})) WHEN 'true' THEN 1.0::DOUBLE "
        "WHEN 'false' THEN 0.0::DOUBLE END END)"
    )


def text(source: Source, name: str) -> str:
    """Returns an SQL expression for a text: NULL if it is missing."""
    return f"CASE WHEN {absent(source, name)} THEN NULL ELSE {quoted(name)}::VARCHAR END"


def date(source: Source, name: str) -> str:
    """Returns an SQL expression for seconds since 1970: NULL if it is missing or no date.

    A text may end in a time zone or an offset.
    """
    column, kind = quoted(name), source.columns[name]
    if kind_of_type(kind) == "date":
        if kind == "TIMESTAMPTZ_NS":  # which few of DuckDB's functions take
            column += "::TIMESTAMPTZ"
        return f"CASE WHEN isfinite({column}) THEN epoch({column}) END"
    form, cell = source.dates.get(name), f"trim({column}::VARCHAR)"
    read = moment(cell, form or "%d.%m.%Y")
    if form is None:
        read = f"coalesce(TRY_CAST({cell} AS TIMESTAMP), {read})"
    inside = f"CASE WHEN isfinite({read}) THEN epoch({read}) END"
    if form is None:  # a cast to a time stamp leaves out what comes after the time: a zone, or PM
        zoned = f"regexp_matches({cell}, '^[-/0-9T ]+:[0-9:.]+ *[^0-9:. ]')"
        inside = f"CASE WHEN {zoned} THEN epoch(TRY_CAST({cell} AS TIMESTAMPTZ)) ELSE {inside} END"
    return f"CASE WHEN {absent(source, name)} THEN NULL ELSE {inside} END"


def duration(source: Source, name: str) -> str:
    """Returns an SQL expression for seconds: NULL if it is missing or no duration."""
    column = quoted(name)
    if source.columns[name] == "INTERVAL":
        return f"epoch({column})"
    cell = f"lower(trim({column}::VARCHAR))"
    return (
        f"CASE WHEN regexp_full_match({cell}, {_CLOCK}) OR regexp_full_match({cell}, {_UNITS}) "
        f"THEN epoch(TRY_CAST({cell} AS INTERVAL)) END"
    )


def with_formats(source: Source, columns: Iterable[Column]) -> Source:
    """Returns a table whose texts, and columns without a value, are read as a preparation says."""
    columns = list(columns)
    void = {
        one.name: _TYPES[one.kind] for one in columns if source.columns.get(one.name) == _NO_TYPE
    }
    if void:
        nulls = ", ".join(f"NULL::{kind} AS {quoted(name)}" for name, kind in void.items())
        relation = f"(SELECT * REPLACE ({nulls}) FROM {source.relation})"
        source = replace(source, relation=relation, columns={**source.columns, **void})
    texts = [one for one in columns if is_written(source, one.name)]
    decimals = {one.name: one.decimal for one in texts if one.decimal}
    dates = {one.name: one.date_format for one in texts if one.date_format}
    return replace(source, decimals=decimals, dates=dates) if decimals or dates else source


def with_mark(source: Source, name: str, mark: str | None) -> Source:
    """Returns a table whose column of texts is read with a decimal mark, if one is given."""
    return replace(source, decimals={name: mark}) if mark and is_written(source, name) else source


def find_forms(
    duck: Duck, source: Source, kind: str, names: Sequence[str], said: str | None, *, strict: bool
) -> tuple[dict[str, str], dict[str, Problem]]:
    """Finds how columns of texts write numbers or dates, where they do so in one way alone.

    Args:
        duck: the session.
        source: the table.
        kind: ``decimal`` or ``date_format``, as options name it.
        names: columns of texts; of numbers and without `said`, those that are not plain numbers.
        said: the mark or format that the caller gives, or None.
        strict: refuse a guess.

    Returns:
        The decimal mark or the format of dates by column, as far as it is not the plain way, and
        the columns that can be read in two ways, or not as the option says.
    """
    if kind == "decimal":
        marks = (said, f"{said}{PERCENT}") if said else (*MARKS, *PERCENT_MARKS)
        tests = {mark: marked(mark) for mark in marks}
        tests[_COMMA] = "contains({0}, ',')"
        what, leave = "numbers with the decimal mark {!r}: read them", ""
        asked = (
            "{} has a comma before three digits, as all its values with a comma: a decimal comma, "
            "or thousands?"
        )
    else:
        tests = {one: f"{moment('{0}', one)} IS NOT NULL" for one in ((said,) if said else DATES)}
        what, leave = "dates: read them", ", or leave the column out with {}"
        asked = "is {} day and month, or month and day? All its values can be read both ways;"
    forms, problems = dict[str, str](), dict[str, Problem]()
    shown = "contains({}::VARCHAR, ',')" if kind == "decimal" else "true"
    for name, there, counts in _counts(duck, source, names, tests):
        fitting = _fitting_forms(there, counts)
        start = f"{source.name}: column {name!r}"
        if len(fitting) == 1 and (said or not strict or fitting == [PERCENT_MARKS[1]]):
            forms[name] = fitting[0]
        elif len(fitting) == 1:
            form = _as_option(fitting[0])
            read = f"{start} holds {what.format(form)} with {option(kind, form)}"
            left = leave.format(option("ignore", name))
            problems[name] = Problem(read + left, (kind, form))
        elif fitting:
            cell = short(_first(duck, source, name, shown.format(quoted(name)))[1])
            say = f"{asked.format(cell)}{' S' if kind == 'decimal' else ' s'}ay it: "
            ways = " or ".join(option(kind, _as_option(form)) for form in fitting)
            problems[name] = Problem(f"{start}: {say}{ways}")
        elif kind == "decimal" and said and not source.decimals:
            problem = _other_mark(duck, source, name, said)
            problems |= {} if problem is None else {name: problem}
    return forms, problems


def describe_form(form: str) -> str:
    """Says how a column writes its numbers, or its dates, which have a format with ``%d``."""
    if form in PERCENT_MARKS:
        commas = " with decimal commas" if form[0] == "," else ""
        return f"percentages{commas}: 25% is read as the number 25"
    what = "numbers with the decimal mark" if form in MARKS else "dates written"
    return f"{what} {form!r}"


def _fitting_forms(there: int, counts: Mapping[str, int]) -> list[str]:
    """Returns the forms in which all values of a column can be read."""
    forms = [form for form, count in counts.items() if 0 < count == there and form != _COMMA]
    if forms == list(PERCENT_MARKS) and not counts[_COMMA]:
        return [PERCENT_MARKS[1]]  # 25%, and 1.234% as it would be read without the sign
    return forms


def _as_option(form: str) -> str:
    """Returns what an option takes for a form: its mark alone, for percentages too."""
    return form[0] if form in PERCENT_MARKS else form


def find_odd_numbers(duck: Duck, source: Source, names: Sequence[str]) -> dict[str, str]:
    """Returns what is to be said of columns that are read as plain numbers, but may be no such.

    Whole numbers may be codes, ``00560``. Beside whole numbers below a thousand, ``1.020`` may be
    a thousand and twenty; so may it where other columns have decimal commas. The first rows and
    columns are looked at.
    """
    head = replace(source, relation=f"(FROM {source.relation} LIMIT {_CODES})")
    tests = {
        "code": "regexp_matches({0}, '^0[0-9]+$')",
        "whole": "regexp_matches({0}, '^[0-9]+$')",
        "parted": r"regexp_matches({0}, '^[+-]?[1-9][0-9]{0,2}\.[0-9]{3}$')",
        "small": "regexp_matches({0}, '^[+-]?[0-9]{1,3}$')",
        "integer": "regexp_matches({0}, '^[+-]?[0-9]+$')",
    }
    commas = next((name for name, mark in source.decimals.items() if mark[0] == ","), None)
    found = {}
    for name, there, counts in _counts(duck, head, names[:_COLUMNS], tests):
        doubts = counts["parted"] > 0 and there == counts["parted"] + counts["integer"]
        parted = doubts and 0 < counts["small"] == counts["integer"]
        codes = counts["code"] > 0 and counts["whole"] == there
        if not (codes or parted or (doubts and commas)):
            continue
        odd = tests["code" if codes else "parted"].replace("{0}", f"trim({quoted(name)})")
        cell = _first(duck, head, name, odd)[1].strip()
        if codes:
            found[name] = (
                f"{cell} is read as a number; if these are codes: {option('one_hot', name)}"
            )
            continue
        beside = "" if commas is None else f", although {commas!r} has decimal commas"
        found[name] = (
            f"{cell} is read as a number with a decimal point{beside}; if it parts thousands: "
            f"{option('decimal', ',')}"
        )
    return found


def _counts(
    duck: Duck, source: Source, names: Sequence[str], tests: Mapping[str, str]
) -> Iterable[tuple[str, int, dict[str, int]]]:
    """Yields of each column how many values it has, and how many pass each test."""
    counts = ["count(*)"]
    counts += [f"count(*) FILTER ({test.replace('{0}', 'cell')})" for test in tests.values()]
    written = [name for name in names if is_text(source, name)]
    plain = [name for name in names if not is_text(source, name)]
    for some, there in ((written, f"NOT regexp_full_match(cell, {_NONE})"), (plain, "true")):
        for start in range(0, len(some), _COLUMNS):
            block = some[start : start + _COLUMNS]
            texts = [f"trim({quoted(name)})" for name in block]
            found = duck.each(source.relation, texts, counts, there, where=source.name)
            for name, (known, *passed) in zip(block, found, strict=True):
                yield name, known, dict(zip(tests, passed, strict=True))


def _first(duck: Duck, source: Source, name: str, condition: str) -> tuple[int, str]:
    """Returns the number and the text of the first cell where a condition holds."""
    found = duck.rows(
        f"SELECT place + 1, cell FROM (SELECT row_number() OVER () - 1 AS place, "
        f"{quoted(name)}::VARCHAR AS cell, {quoted(name)} FROM {source.relation}) WHERE NOT "
        f"{absent(source, name)} AND ({condition}) ORDER BY place LIMIT 1",
        where=source.name,
    )
    return (int(found[0][0]), str(found[0][1])) if found else (1, "")


def _other_mark(duck: Duck, source: Source, name: str, said: str) -> Problem | None:
    """Returns the problem with a column of plain numbers that are not written as is said."""
    cell = f"trim({quoted(name)})"
    number = f"TRY_CAST({cell} AS DOUBLE)"
    fits = marked(said).replace("{0}", cell)
    other = f"{number} IS NULL AND NOT {absent(source, name)}"
    mixed, wrong = duck.row(
        f"SELECT count(*) FILTER ({other}), count(*) FILTER ({other} AND NOT {fits}) "
        f"FROM {source.relation}"
    )
    if wrong:
        return None  # no numbers at all: text, a category, a date
    row, value = _first(duck, source, name, f"NOT {fits} AND isfinite({number})")
    if not value:
        return None
    how = "correct it" if mixed else f"leave {option('decimal')} out if columns differ"
    return Problem(
        f"{source.name}: row {row}, column {name!r}: {short(value)} is not a number with the "
        f"decimal mark {literal(said)}; {how}, or leave the column out with "
        f"{option('ignore', name)}",
        ("ignore", name),
    )
