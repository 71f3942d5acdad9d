"""Result rows: one JSON object per line, with the versions, device and commit of the result.

Also places on pages what is made from rows.
"""

import os
import subprocess
from pathlib import Path

import torch

from graphcl.research import rows
from graphcl.research.rows import Row, append, read

__all__ = ["append", "name_commit", "placed", "provenance", "read"]


def provenance(device: torch.device) -> Row:
    """Returns the versions, the device and the commit of this checkout."""
    found = rows.provenance(device)
    return found | {"commit": found["commit"] or _commit()}


def name_commit() -> None:
    """Lets rows of `graphcl.research.rows.execute` name the commit of this checkout."""
    os.environ.setdefault("GRAPHCL_COMMIT", _commit() or "")


def placed(page: str, begin: str, made: str, end: str) -> str:
    """Returns a page on which `made` stands between the mark `begin` and the next `end`.

    Raises:
        ValueError: the page lacks a mark.
    """
    before, first, rest = page.partition(begin)
    _, second, after = rest.partition(end)
    if not first or not second:
        raise ValueError(f"a page lacks its mark {(end if first else begin).strip()}")
    return before + begin + made + end + after


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
