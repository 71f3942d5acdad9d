"""The shape of a delimited text file, from its first lines: delimiter, header, columns.

DuckDB's own detection guesses types too, and then `007` is the number 7. Here every field stays
the text it is; what is a number is decided once all rows are seen.
"""

import csv
import gzip
import io
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from graphcl.errors import GraphError
from graphcl.tabular.duck import file_literal, literal

DELIMITERS = {",": "comma", "\t": "tab", ";": "semicolon", "|": "bar"}
_HEAD_BYTES = 1 << 20
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_LINE = "\x1f"  # the unit separator: a delimiter that no text file uses


@dataclass(frozen=True)
class Shape:
    """How a file is to be read.

    Attributes:
        delimiter: one character, or `` `` for any run of spaces and tabs.
        header: whether the first line names the columns.
        columns: their names.
        compression: ``gzip`` or ``none``.
    """

    delimiter: str
    header: bool
    columns: tuple[str, ...]
    compression: str

    def scan(self, path: Path) -> str:
        """Returns the SQL expression that reads the file, every column as text."""
        if self.delimiter == " ":
            return self._scan_words(path)
        return _read_csv(path, self, self.delimiter, self.columns, quote='"', header=self.header)

    def _scan_words(self, path: Path) -> str:
        lines = _read_csv(path, self, _LINE, ("line",), quote="", header=self.header)
        words = "string_split_regex(trim(line, ' \t'), '[ \t]+')"
        named = ", ".join(
            f'words[{place}] AS "{name}"' for place, name in enumerate(self.columns, 1)
        )
        return (
            f"(SELECT {named} FROM (SELECT {words} AS words FROM {lines} "
            "WHERE NOT starts_with(line, '#') AND NOT starts_with(line, '%')))"
        )


def _read_csv(
    path: Path, shape: Shape, delimiter: str, columns: tuple[str, ...], *, quote: str, header: bool
) -> str:
    fields = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in columns)
    return (
        f"read_csv({file_literal(path)}, auto_detect=false, columns={{{fields}}}, "
        f"delim={literal(delimiter)}, quote={literal(quote)}, escape={literal(quote)}, "
        f"header={str(header).lower()}, compression='{shape.compression}')"
    )


def shape_of(path: Path, *, header: bool | None, names: frozenset[str]) -> Shape:
    """Looks at the first lines of a file.

    Args:
        path: a text file, gzipped or not.
        header: whether the first line names the columns; None guesses: it does unless one of its
            first two fields is a number.
        names: column names that somebody expects; a line that holds one of them is a header.

    Raises:
        GraphError: the file is empty, is no UTF-8 text, or repeats a column's name.
    """
    head, compression = _head(path)
    words = _is_words(path)
    lines = [line for line in re.split(r"\r?\n|\r", head) if line.strip()]
    if words:
        lines = [line for line in lines if not line.startswith(("#", "%"))]
    if not lines:
        raise GraphError(f"{path}: is empty")
    delimiter = _delimiter(path, lines[0], words=words)
    fields = _fields(head, lines[0], delimiter)
    if header is None:
        named = any(field.strip().lower() in names for field in fields)
        header = named or not any(_NUMBER.fullmatch(field.strip()) for field in fields[:2])
        header = header and not words
    columns = tuple(
        field if header and field.strip() else f"column{place}"
        for place, field in enumerate(fields)
    )
    lowered = [name.lower() for name in columns]
    twice = [name for place, name in enumerate(columns) if name.lower() in lowered[:place]]
    if twice:
        raise GraphError(f"{path}: the header names column {twice[0]!r} twice")
    return Shape(delimiter, header, columns, compression)


def _is_words(path: Path) -> bool:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    return not suffixes or suffixes[-1] not in (".csv", ".tsv")


def _head(path: Path) -> tuple[str, str]:
    """Returns the first text of a file and how it is compressed."""
    with path.open("rb") as file:
        raw = file.read(_HEAD_BYTES)
    compression = "none"
    if raw[:2] == b"\x1f\x8b":
        compression = "gzip"
        try:
            with gzip.open(path) as file:
                raw = file.read(_HEAD_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise GraphError(f"{path}: damaged gzip ({error})") from None
    elif path.suffix.lower() == ".gz":
        raise GraphError(f"{path}: is named .gz but is not gzipped")
    if b"\x00" in raw:
        raise GraphError(f"{path}: is no text file; .csv and .tsv must be UTF-8 text")
    try:
        # The cut may fall inside a character; a wrong byte before it is an error all the same.
        text = raw.decode("utf-8-sig", errors="strict" if len(raw) < _HEAD_BYTES else "ignore")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise GraphError(
            f"{path}: line {line} is not UTF-8; convert it: iconv -f latin1 -t utf-8"
        ) from None
    return text, compression


def _delimiter(path: Path, line: str, *, words: bool) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if ".tsv" in suffixes:
        return "\t"
    outside = re.sub(r'"[^"]*"', "", line)
    counts = {delimiter: outside.count(delimiter) for delimiter in DELIMITERS}
    best = max(counts, key=lambda delimiter: counts[delimiter])
    if words and (counts[best] == 0 or best == "\t"):
        return " "
    return best


def _fields(head: str, line: str, delimiter: str) -> list[str]:
    if delimiter == " ":
        return line.split()
    try:
        start = head.index(line)
        return next(csv.reader(io.StringIO(head[start:], newline=""), delimiter=delimiter))
    except (csv.Error, StopIteration):
        return line.split(delimiter)
