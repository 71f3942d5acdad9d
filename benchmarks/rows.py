"""Result rows: one JSON object per line, with the versions, device and commit of the result."""

import subprocess
from pathlib import Path

import torch

from graphcl.trials import rows
from graphcl.trials.rows import Row, append, read

__all__ = ["append", "provenance", "read"]


def provenance(device: torch.device) -> Row:
    """Returns the versions, the device and the commit of this checkout."""
    found = rows.provenance(device)
    return found | {"commit": found["commit"] or _commit()}


def _commit() -> str | None:
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
