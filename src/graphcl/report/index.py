"""An index of a run's embeddings, kept beside them and built anew when they change."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.evaluation.nearest import build_index, empty_index, unit_rows

INDEX, ABOUT = "neighbors.usearch", "neighbors.json"


def stored_index(run: Path, z: npt.NDArray[np.float32]) -> tuple[Any, str]:
    """Returns an index over the rows of `z`, and why it was built (empty where it was read).

    A run that cannot be written to is served from memory.
    """
    about = {"embeddings": fingerprint(z), "rows": len(z), "dim": int(z.shape[1])}
    index, why = _read(run, about)
    if index is not None:
        return index, ""
    index = build_index(unit_rows(z))
    staging = run / f".{INDEX}.partial"
    try:
        index.save(str(staging))
        (run / ABOUT).unlink(missing_ok=True)  # never an old description beside a new index
        staging.replace(run / INDEX)
        described = run / f".{ABOUT}.partial"
        described.write_text(json.dumps(about) + "\n")
        described.replace(run / ABOUT)
    except (OSError, RuntimeError):
        why = f"{why}; it could not be kept in {run}"
    finally:
        staging.unlink(missing_ok=True)
    return index, why


def fingerprint(z: npt.NDArray[np.float32]) -> str:
    """Returns a name for the very bits of an array."""
    rows = np.ascontiguousarray(z)
    return hashlib.blake2b(rows.data, digest_size=16).hexdigest()


def _read(run: Path, about: dict[str, Any]) -> tuple[Any, str]:
    try:
        known = json.loads((run / ABOUT).read_text())
    except (OSError, ValueError):
        return None, "there was none"
    if known != about:
        return None, "the embeddings have changed"
    index = empty_index(about["dim"])
    try:
        index.load(str(run / INDEX))
    except (OSError, RuntimeError, ValueError):
        return None, "the old one is damaged"
    return (index, "") if len(index) == about["rows"] else (None, "the old one is damaged")
