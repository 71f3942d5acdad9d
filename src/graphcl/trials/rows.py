"""Rows of results: one JSON object per line, appended as they come and safe against a kill.

A row that is finished is on the disk before the next run starts. A process that dies while it
writes leaves a torn last line: that is not read, and the next row starts on a line of its own.
"""

import json
import os
import platform
import subprocess
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any

import numpy
import scipy
import sklearn
import torch

from graphcl import __version__
from graphcl.devices import device_name
from graphcl.errors import RunError

Row = dict[str, Any]


def append(path: Path, row: Row) -> None:
    """Appends one row and waits until the disk has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = (json.dumps(row, allow_nan=False) + "\n").encode()
    with path.open("ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # torn by a kill
                line = b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[Row]:
    """Returns the rows of a file; none where there is no file.

    Raises:
        RunError: a line that no kill can have torn does not parse.
    """
    if not path.exists():
        return []
    # Not splitlines(): it would also split at separators that a JSON string may hold.
    lines = path.read_bytes().split(b"\n")
    rows: list[Row] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            # Torn: what a kill left, at the end or before the row that a later start appended.
            if line.startswith(b"{") and not line.rstrip().endswith(b"}"):
                continue
            raise RunError(f"{path}: line {number} is no row of results") from None
        if not isinstance(row, dict):
            raise RunError(f"{path}: line {number} is no row of results")
        rows.append(row)
    return rows


def latest(rows: Iterable[Row], key: Any) -> dict[Hashable, Row]:
    """Returns the last row of each key; a run that failed and was repeated counts once."""
    return {key(row): row for row in rows}


def provenance(device: torch.device) -> Row:
    """Returns versions, commit and device of this process."""
    return {
        "commit": os.environ.get("GRAPHCL_COMMIT") or _commit(),
        "device": device_name(device),
        "machine": platform.machine(),
        "versions": {
            "graphcl": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "scipy": scipy.__version__,
            "scikit-learn": sklearn.__version__,
        },
    }


def _commit() -> str | None:
    """Returns the commit of the checkout this package lies in; None for an installed one."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
