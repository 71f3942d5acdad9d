"""Rows of results: files with one JSON object per line.

A finished row is on the disk before the next run starts. If a process is killed while it writes, it
leaves an incomplete last line. `read` skips it, and `append` starts the next row on a new line.
"""

import json
import os
import platform
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

import torch

from graphcl.devices import device_name
from graphcl.errors import RunError
from graphcl.version import versions

Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"
Row: TypeAlias = dict[str, Json]
_Key = TypeVar("_Key", bound=Hashable)


def number(row: Mapping[str, Json], column: str) -> float:
    """Returns a column that holds a number; anything else, or nothing, is a `RunError`."""
    value = row.get(column)
    if not isinstance(value, int | float):
        raise RunError(f"a row of results has no number in {column!r}: {value!r}")
    return value


def numbers(row: Mapping[str, Json], column: str) -> list[float]:
    """Returns a column that holds a list of numbers; anything else, or nothing, is a `RunError`."""
    values = row.get(column)
    if isinstance(values, Sequence):
        found = [value for value in values if isinstance(value, int | float)]
        if len(found) == len(values):
            return found
    raise RunError(f"a row of results has no numbers in {column!r}: {values!r}")


def text(row: Mapping[str, Json], column: str) -> str:
    """Returns a column that holds text; anything else, or nothing, is a `RunError`."""
    value = row.get(column)
    if not isinstance(value, str):
        raise RunError(f"a row of results has no text in {column!r}: {value!r}")
    return value


def mean_and_deviation(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Returns the mean, and the sample's deviation (n − 1); None where there are too few values."""
    mean = statistics.fmean(values) if values else None
    return mean, statistics.stdev(values) if len(values) > 1 else None


def append(path: Path, row: Mapping[str, object]) -> None:
    """Appends one row and waits until the disk has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(row, allow_nan=False) + "\n").encode()
    with path.open("ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # the incomplete line of a killed process
                line = b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[Row]:
    """Returns the rows of a file; none if the file does not exist.

    Raises:
        RunError: a line is not a row, and not the incomplete line of a killed process.
    """
    if not path.exists():
        return []
    # Not splitlines(): it would also split at separators that a JSON string may contain.
    lines = path.read_bytes().split(b"\n")
    rows: list[Row] = []
    for place, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            # The incomplete line of a killed process; a later process may have appended rows to it.
            if line.startswith(b"{") and not line.rstrip().endswith(b"}"):
                continue
            raise RunError(f"{path}: line {place} is not a row of results") from None
        if not isinstance(row, dict):
            raise RunError(f"{path}: line {place} is not a row of results")
        rows.append(row)
    return rows


def latest(rows: Iterable[Row], key: Callable[[Row], _Key]) -> dict[_Key, Row]:
    """Returns the last row of each key, so that a repeated run counts once."""
    return {key(row): row for row in rows}


def provenance(device: torch.device) -> Row:
    """Returns the device, versions and commit (from ``GRAPHCL_COMMIT``) of this process."""
    return {
        "commit": os.environ.get("GRAPHCL_COMMIT") or None,
        "device": device_name(device),
        "machine": platform.machine(),
        "versions": versions(),
    }
