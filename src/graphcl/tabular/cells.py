"""What a cell of a node table says, as SQL: a number, a date, a duration, a text, or nothing.

In a format without types (CSV) every cell is text, and a column is what all of its cells can be
read as. In a typed format the column's type decides.
"""

from typing import TYPE_CHECKING

from graphcl.tabular.duck import literal, quoted

if TYPE_CHECKING:  # it imports SciPy, which commands without tables do not need
    from graphcl.tabular.sources import Source

MARKS = (",", ".")  # that may stand before decimals; the other one then parts thousands
NO_VALUE = ("", "na", "n/a", "nan", "null", "none", "<na>", "-", "?")
_NUMBERS = ("INT", "DOUBLE", "FLOAT", "DECIMAL", "BOOLEAN")
_CLOCK = "'[0-9]{1,6}:[0-5][0-9](:[0-5][0-9](\\.[0-9]+)?)?'"
_UNITS = "'([0-9.]+ *(days?|hours?|minutes?|mins?|seconds?|secs?|weeks?) *)+'"


def absent(source: "Source", name: str) -> str:
    """Returns an SQL condition that is true for missing values."""
    column, kind = quoted(name), source.columns[name]
    if kind in ("FLOAT", "DOUBLE"):
        return f"({column} IS NULL OR isnan({column}))"
    if not is_text(source, name):
        return f"({column} IS NULL)"
    words = ", ".join(literal(word) for word in NO_VALUE)
    return f"({column} IS NULL OR lower(trim({column})) IN ({words}))"


def is_text(source: "Source", name: str) -> bool:
    """Returns whether a column's values are read from texts: of a CSV, or by an option."""
    return source.untyped or name in source.decimals


def is_written(source: "Source", name: str) -> bool:
    """Returns whether a column holds texts, which may write numbers or dates in some way."""
    return source.columns.get(name) == "VARCHAR"


def marked(mark: str) -> str:
    """Returns an SQL condition on ``{0}``: a number with this decimal mark."""
    other = MARKS[1 - MARKS.index(mark)]
    whole = f"([0-9]{{1,3}}([{other}][0-9]{{3}})+|[0-9]+)"
    pattern = f"[+-]?({whole}([{mark}][0-9]*)?|[{mark}][0-9]+)([eE][+-]?[0-9]+)?"
    return f"regexp_full_match({{0}}, {literal(pattern)})"


def moment(cell: str, form: str) -> str:
    """Returns an SQL expression for the time stamp that a text is in a format; NULL if none."""
    timed = "%H" in form or "%I" in form
    forms = [form] if timed else [form, f"{form} %H:%M", f"{form} %H:%M:%S"]
    read = f"try_strptime({cell}, [{', '.join(map(literal, forms))}])"
    return f"CASE WHEN year({read}) >= 1000 THEN {read} END"


def plain(source: "Source", name: str) -> str:
    """Returns an SQL expression for a text in which a number is written as computers do."""
    column, mark = quoted(name), source.decimals.get(name)
    if mark is None:
        return column
    fits = marked(mark).replace("{0}", f"trim({column})")
    other = MARKS[1 - MARKS.index(mark)]
    bare = f"replace(replace({column}, {literal(other)}, ''), {literal(mark)}, '.')"
    # A number that is written in the other way is none.
    return (
        f"CASE WHEN {fits} THEN {bare} WHEN TRY_CAST({column} AS DOUBLE) IS NULL THEN {column} END"
    )


def kind_of_type(kind: str) -> str:
    """Returns what a typed column is: number, date, time, duration, vector, text; or empty."""
    if kind.endswith("]"):
        return "vector" if any(word in kind for word in _NUMBERS[:-1]) else ""
    if kind == "DATE" or kind.startswith("TIMESTAMP"):
        return "date"
    if kind in ("TIME", "INTERVAL"):
        return "time" if kind == "TIME" else "duration"
    if kind in ("VARCHAR", "UUID") or kind.startswith("ENUM"):
        return "text"
    if kind.startswith(("STRUCT", "MAP", "UNION")):
        return ""
    return "number" if any(word in kind for word in _NUMBERS) else ""


def number(source: "Source", name: str) -> str:
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


def text(source: "Source", name: str) -> str:
    """Returns an SQL expression for a text: NULL if it is missing."""
    return f"CASE WHEN {absent(source, name)} THEN NULL ELSE {quoted(name)}::VARCHAR END"


def date(source: "Source", name: str) -> str:
    """Returns an SQL expression for seconds since 1970: NULL if it is missing or no date."""
    column, kind = quoted(name), source.columns[name]
    if kind_of_type(kind) == "date":
        return f"CASE WHEN isfinite({column}) THEN epoch({column}) END"
    form = source.dates.get(name)
    read = moment(f"trim({column})", form or "%d.%m.%Y")
    if form is None:
        read = f"coalesce(TRY_CAST(trim({column}) AS TIMESTAMP), {read})"
    inside = f"CASE WHEN isfinite({read}) THEN epoch({read}) END"
    return f"CASE WHEN {absent(source, name)} THEN NULL ELSE {inside} END"


def duration(source: "Source", name: str) -> str:
    """Returns an SQL expression for seconds: NULL if it is missing or no duration."""
    column = quoted(name)
    if source.columns[name] == "INTERVAL":
        return f"epoch({column})"
    cell = f"lower(trim({column}))"
    return (
        f"CASE WHEN regexp_full_match({cell}, {_CLOCK}) OR regexp_full_match({cell}, {_UNITS}) "
        f"THEN epoch(TRY_CAST({cell} AS INTERVAL)) END"
    )


def clock(name: str) -> str:
    """Returns an SQL expression for the seconds since midnight of a time of day."""
    return f"epoch({quoted(name)})"
