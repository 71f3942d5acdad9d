"""Rows of results: files with one JSON object per line.

A finished row is on the disk before the next run starts. If a process is killed while it writes, it
leaves an incomplete last line. `read` skips it, and `append` starts the next row on a new line.
"""

import json
import os
import platform
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch

from graphcl.devices import device_name
from graphcl.errors import RunError
from graphcl.version import versions

Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"
Row: TypeAlias = dict[str, Json]
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training of a system and its scores.

    Attributes:
        method: the system's name.
        title: the system's name in tables.
        graph: the graph's name.
        seed: the training's seed.
        settings: the system's hyperparameters.
        recipe_hash: for GraphCL, the recipe's hash.
        variant: for GraphCL, the recipe's name if it is not the dataset's own recipe.
        runs_identical: whether every seed gives the same result.
        failed: why the training failed.
        loss: for GraphCL, the loss of the last epoch.
        train_seconds: duration of the training.
        peak_memory_bytes: peak memory of the training.
        scores: the columns of a probe's or a prediction's result; empty before scoring.
    """

    method: str
    title: str = ""
    graph: str
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)  # a value has its field's type
    recipe_hash: str | None = None
    variant: str | None = None
    runs_identical: bool | None = None
    failed: str | None = None
    loss: float | None = None
    train_seconds: float | None = None
    peak_memory_bytes: int | None = None
    scores: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> Row:
        """Returns the row: fields that are not None, then the scores."""
        named: Row = {name: getattr(self, name) for name in _COLUMNS}
        return {name: value for name, value in named.items() if value is not None} | {**self.scores}


_COLUMNS = tuple(one.name for one in fields(Trial) if one.name != "scores")


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
