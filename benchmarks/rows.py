"""Result rows: one JSON object per line, each with what is needed to judge it."""

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy
import scipy
import sklearn
import torch

from graphcl.devices import device_name


def provenance(device: torch.device) -> dict[str, Any]:
    """Returns commit, versions and device of this process."""
    return {
        "commit": os.environ.get("GRAPHCL_COMMIT") or _commit(),
        "device": device_name(device),
        "machine": platform.machine(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": numpy.__version__,
            "scipy": scipy.__version__,
            "scikit-learn": sklearn.__version__,
        },
    }


def append(path: Path, row: dict[str, Any]) -> None:
    """Appends one row and flushes it to disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(row, allow_nan=False) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Returns every row of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def _commit() -> str | None:
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
