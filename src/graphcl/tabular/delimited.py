"""Detects the dialect of a delimited text file from its first lines: delimiter, header, columns.

DuckDB's own detection also guesses types, and would read `007` as the number 7. Here every field
is read as text. Whether a column holds numbers is decided once all rows have been read.
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

DELIMITERS = ",\t;|"
_HEAD_BYTES = 1 << 20
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_LINE = "\x1f"  # the ASCII unit separator: a delimiter that no text file uses, so a line is a field


@dataclass(frozen=True)
class Dialect:
    """How to read a file.

    Attributes:
        delimiter: one character; a space stands for any run of spaces and tabs.
        header: whether the first line names the columns.
        columns: the names of the columns.
        compression: ``gzip`` or ``none``.
    """

    delimiter: str
    header: bool
    columns: tuple[str, ...]
    compression: str

    def scan(self, path: Path) -> str:
        """Returns an SQL expression that reads every column of the file as text."""
        if self.delimiter != " ":
            return self._read_csv(path, self.delimiter, self.columns, quote='"')
        # DuckDB splits at one character only: read whole lines, and split them with a pattern.
        lines = self._read_csv(path, _LINE, ("line",), quote="")
        words = "string_split_regex(trim(line, ' \t'), '[ \t]+')"
        named = ", ".join(
            f'words[{place}] AS "{name}"' for place, name in enumerate(self.columns, 1)
        )
        return (
            f"(SELECT {named} FROM (SELECT {words} AS words FROM {lines} "
            "WHERE NOT starts_with(line, '#') AND NOT starts_with(line, '%')))"
        )

    def _read_csv(self, path: Path, delimiter: str, columns: tuple[str, ...], *, quote: str) -> str:
        fields = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in columns)
        return (
            f"read_csv({file_literal(path)}, auto_detect=false, columns={{{fields}}}, "
            f"delim={literal(delimiter)}, quote={literal(quote)}, escape={literal(quote)}, "
            f"header={str(self.header).lower()}, compression='{self.compression}')"
        )


def detect_dialect(path: Path, *, header: bool | None, names: frozenset[str]) -> Dialect:
    """Detects the dialect of a file from its first lines.

    Args:
        path: a text file, gzipped or not.
        header: whether the first line names the columns. None guesses: it is a header unless one
            of its first two fields is a number.
        names: expected column names; a first line that contains one of them is a header.

    Raises:
        GraphError: the file is empty, is not UTF-8 text, or repeats a column's name.
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
    return Dialect(delimiter, header, columns, compression)


def _is_words(path: Path) -> bool:
    """Returns whether fields may be separated by spaces: in every file but `.csv` and `.tsv`."""
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    return not suffixes or suffixes[-1] not in (".csv", ".tsv")


def _head(path: Path) -> tuple[str, str]:
    """Returns the beginning of a file as text, and how the file is compressed."""
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
    zeros = max(raw[::2].count(0), raw[1::2].count(0))  # every other byte of UTF-16
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or zeros > len(raw) // 4:
        convert = f"iconv -f utf-16 -t utf-8 {path} > NEW.csv"
        raise GraphError(f"{path}: is UTF-16; convert it: {convert}")
    if b"\x00" in raw:
        raise GraphError(f"{path}: is not a text file; .csv and .tsv files must be UTF-8 text")
    try:
        # In a longer file the cut may fall inside a character. DuckDB reports any wrong byte later.
        text = raw.decode("utf-8-sig", errors="strict" if len(raw) < _HEAD_BYTES else "ignore")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise GraphError(
            f"{path}: line {line} is not UTF-8; convert it: iconv -f latin1 -t utf-8 {path} "
            "> NEW.csv"
        ) from None
    return text, compression


def _delimiter(path: Path, line: str, *, words: bool) -> str:
    if ".tsv" in [suffix.lower() for suffix in path.suffixes]:
        return "\t"
    outside = re.sub(r'"[^"]*"', "", line)  # a delimiter inside quotes does not count
    counts = {delimiter: outside.count(delimiter) for delimiter in DELIMITERS}
    best = max(counts, key=lambda delimiter: counts[delimiter])
    if words and (counts[best] == 0 or best == "\t"):
        return " "
    return best


def _fields(head: str, line: str, delimiter: str) -> list[str]:
    if delimiter == " ":
        return line.split()
    try:
        start = head.index(line)  # from here, not the line alone: a quoted name may span lines
        return next(csv.reader(io.StringIO(head[start:], newline=""), delimiter=delimiter))
    except (csv.Error, StopIteration):
        return line.split(delimiter)
