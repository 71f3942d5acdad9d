"""Tables of answers: `.parquet`, `.csv` or `.json`, written whole or not at all; pairs read back.

A table is a mapping of columns, all of one length, the first of them ids. In Parquet a column has
one type, so ids of several types are written as text. JSON is a list of objects, one per line.
"""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from graphcl.errors import InvalidInputError, counted, demand, import_extra
from graphcl.files.atomic import check_new_file, check_suffix, whole_file

SUFFIXES = (".parquet", ".csv", ".json")
READABLE = (".csv", ".tsv", ".parquet")
Columns = Mapping[str, Any]
_ROWS = 65536  # written at a time
_SHOWN, _SHOWN_COLUMNS, _SHOWN_TEXT = 5, 8, 40  # rows, columns, characters of a cell


class Answer:
    """A result with `columns`: a few lines in a terminal or a notebook, a data frame if asked.

    Results that do not say what their columns are have one row, and a column per field; they are
    shown with a line per field.
    """

    def columns(self) -> dict[str, Any]:
        """Returns the table."""
        return {name: [value] for name, value in vars(self).items()}

    def title(self) -> str:
        """Returns what is said above the table."""
        count = len(next(iter(self.columns().values())))
        return f"{type(self).__name__}: {counted(count, 'row')}"

    def to_pandas(self) -> Any:
        """Returns the table as a pandas `DataFrame`.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        name = f"{type(self).__name__}.to_pandas"
        pandas = import_extra("pandas", feature=name, extra="pandas")
        return pandas.DataFrame({name: _plain(one) for name, one in self.columns().items()})

    def __repr__(self) -> str:
        title, head, rows = self._shown()
        return "\n".join([title, *aligned([head, *rows] if head else rows)])

    def _repr_html_(self) -> str:
        title, head, rows = self._shown()
        cells = ["".join(f"<th>{escape(one)}</th>" for one in head)] if head else []
        cells += ["".join(f"<td>{escape(one)}</td>" for one in row) for row in rows]
        lines = "".join(f"<tr>{row}</tr>" for row in cells)
        return f"<p>{escape(title)}</p><table>{lines}</table>"

    def _shown(self) -> tuple[str, list[str], list[list[str]]]:
        """Returns a title, and of the table the first rows and columns as texts."""
        columns = self.columns()
        if type(self).columns is Answer.columns:
            fields = [[name, _short(value)] for name, (value,) in columns.items()]
            return type(self).__name__, [], fields
        count, names = len(next(iter(columns.values()))), list(columns)[:_SHOWN_COLUMNS]
        kept = {name: columns[name] for name in names}
        rows = [[_short(one) for one in row.values()] for row in records(kept, slice(0, _SHOWN))]
        title = self.title()
        left = len(columns) - len(names)
        title += f", {left} more {'column' if left == 1 else 'columns'}" if left else ""
        return title, names, rows + ([["…"] * len(names)] if count > _SHOWN else [])


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns a line per row of texts, in columns: the first to the left, the others to the right.

    No line ends in blanks.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _short(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(_cell(value))
    return text if len(text) <= _SHOWN_TEXT else f"{text[: _SHOWN_TEXT - 1]}…"


def check_records_file(path: Path, error: type[InvalidInputError], *, overwrite: bool) -> None:
    """Refuses an output file before any work is done for it."""
    check_new_file(path, SUFFIXES, error, overwrite=overwrite)


def records(columns: Columns, rows: slice = slice(None)) -> list[dict[str, Any]]:
    """Returns rows of a table as plain objects, as JSON has them."""
    lists = [_plain(values[rows]) for values in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


def write_records(path: Path, columns: Columns) -> None:
    """Writes a table by rename; the suffix decides the format.

    Raises:
        MissingExtraError: `.parquet` without pyarrow.
        OSError: the file cannot be written.
    """
    writers = {".parquet": _write_parquet, ".csv": _write_csv, ".json": _write_json}
    with whole_file(path) as staging:
        writers[path.suffix](staging, columns)


def _write_parquet(path: Path, columns: Columns) -> None:
    arrow = ("pyarrow", "pyarrow.parquet")
    pyarrow = import_extra(*arrow, feature="writing .parquet", extra="parquet")
    schema = pyarrow.schema([(name, _type(one, pyarrow)) for name, one in columns.items()])
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for rows in _blocks(columns):
            parts = []
            for field, values in zip(schema, columns.values(), strict=True):
                plain = _plain(values[rows])
                if field.type == pyarrow.string():
                    plain = [None if value is None else str(value) for value in plain]
                elif pyarrow.types.is_list(field.type):
                    plain = [None if some is None else list(map(str, some)) for some in plain]
                parts.append(pyarrow.array(plain, field.type))
            writer.write_table(pyarrow.Table.from_arrays(parts, schema=schema))


def _type(values: Any, pyarrow: Any) -> Any:
    """Returns the one type that all values of a column have in Arrow: of several, text."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "iufb":
        narrow = pyarrow.float32 if values.dtype.itemsize <= 4 else pyarrow.float64
        kinds = {"i": pyarrow.int64, "u": pyarrow.int64, "f": narrow, "b": pyarrow.bool_}
        return kinds[values.dtype.kind]()
    found = {type(value) for value in _plain(values) if value is not None}
    if found == {list}:
        return pyarrow.list_(pyarrow.string())
    numbers = {int: pyarrow.int64, float: pyarrow.float64}
    return numbers.get(found.pop() if len(found) == 1 else str, pyarrow.string)()


def _write_csv(path: Path, columns: Columns) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for rows in _blocks(columns):
            for row in records(columns, rows):
                writer.writerow([_cell(value) for value in row.values()])


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        return "|".join(map(str, value))
    return "" if value is None else value


def _write_json(path: Path, columns: Columns) -> None:
    with path.open("w", encoding="utf-8") as file:
        before = "[\n"
        for rows in _blocks(columns):
            for row in records(columns, rows):
                file.write(before + json.dumps(row, allow_nan=False))
                before = ",\n"
        file.write("[\n]\n" if before == "[\n" else "\n]\n")


def _blocks(columns: Columns) -> Iterator[slice]:
    count = len(next(iter(columns.values())))
    for start in range(0, max(count, 1), _ROWS):  # an empty table still has its header
        yield slice(start, start + _ROWS)


def _plain(values: Any) -> list[Any]:
    """Returns values as JSON has them; a float32 becomes the shortest number that is equal."""
    if isinstance(values, np.ndarray) and values.dtype == np.float32:
        return [float(text) for text in values.astype(str)]
    found = values.tolist() if isinstance(values, np.ndarray) else list(values)
    return [one.item() if isinstance(one, np.generic) else one for one in found]


def read_pairs(
    path: Path,
    names: tuple[str, str],
    error: type[InvalidInputError],
    is_id: Callable[[str], bool] = lambda _: False,
) -> list[tuple[str, str]]:
    """Returns two columns of a table as texts; rows with an empty cell are left out.

    Args:
        path: a `.csv`, `.tsv` or `.parquet` file. A delimited file begins with column names.
        names: the two columns; if the file does not have both, and has two, these.
        error: what to raise.
        is_id: whether a text is a node's id; such a text names no column.

    Raises:
        InvalidInputError: of the type `error`: the file is missing, damaged, or too narrow, or its
            first line names no columns.
    """
    check_suffix(path, READABLE, error)
    demand(path.is_file(), f"{path}: no such file", error)
    header, columns = _parquet(path, error) if path.suffix == ".parquet" else _rows(path, error)
    wanted = f"{names[0]} and {names[1]}; found"
    demand(len(header) > 1, f"{path}: needs two columns, {wanted} {header}", error)
    both = all(name in header for name in names)
    listed = ", ".join(map(repr, header[:8]))
    demand(both or len(header) == 2, f"{path}: needs the columns {wanted} {listed}", error)
    unnamed = any(map(_is_number, header)) or is_id(header[0])
    demand(  # else a pair would be taken for names
        both or not unnamed or path.suffix == ".parquet",
        f"{path}: the first line must name the columns, {wanted} {header[0]!r} and {header[1]!r}",
        error,
    )
    places = [header.index(name) for name in names] if both else [0, 1]
    first, second = (map(str, map(_cell, columns[place])) for place in places)
    return [(a, b) for a, b in zip(first, second, strict=True) if a and b]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _rows(path: Path, error: type[InvalidInputError]) -> tuple[list[str], list[Sequence[Any]]]:
    delimiter = "\t" if path.suffix == ".tsv" else ","
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file, delimiter=delimiter, strict=True) if line]
    except (UnicodeDecodeError, csv.Error) as problem:
        raise error(f"{path}: not a table in UTF-8 ({problem})") from None
    demand(lines, f"{path}: is empty", error)
    header, *rest = lines
    for number, line in enumerate(rest, 2):
        if len(line) != len(header):
            raise error(f"{path}: line {number} has {len(line)} cells; the header {len(header)}")
    return header, [[line[place] for line in rest] for place in range(len(header))]


def _parquet(path: Path, error: type[InvalidInputError]) -> tuple[list[str], list[Sequence[Any]]]:
    arrow = ("pyarrow", "pyarrow.parquet")
    pyarrow = import_extra(*arrow, feature="reading .parquet", extra="parquet")
    try:
        table = pyarrow.parquet.read_table(path)
        return table.column_names, [column.to_pylist() for column in table.columns]
    except (pyarrow.ArrowException, OSError, ValueError) as problem:
        reason = " ".join(str(problem).split())[:120]
        raise error(f"{path}: not a readable .parquet file ({reason})") from None
