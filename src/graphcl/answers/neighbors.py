"""An index of a run's embeddings, kept beside them and built anew when they change.

usearch's reader believes what an index says, so one that somebody else made could crash it. Only an
index that this user's own key has sealed is read; any other is built again.
"""

import hashlib
import json
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import RunError
from graphcl.evaluation.nearest import build_index, empty_index, unit_rows
from graphcl.files.atomic import whole_file, write_whole
from graphcl.files.text import read_text
from graphcl.files.user import seal, user_key

INDEX, ABOUT = "neighbors.usearch", "neighbors.json"


def stored_index(run: Path, z: npt.NDArray[np.float32]) -> tuple[Any, str]:
    """Returns an index over the rows of `z`, and why it was built (empty where it was read).

    A run that cannot be written to is served from memory.
    """
    about = {"embeddings": fingerprint(z), "rows": len(z), "dim": int(z.shape[1])}
    key = user_key()
    index, why = _read(run, about, key)
    if index is not None:
        return index, ""
    index = build_index(unit_rows(z))
    try:
        with whole_file(run / INDEX) as staging:
            index.save(str(staging))
            about["seal"] = seal(staging, key)
            (run / ABOUT).unlink(missing_ok=True)  # never an old description beside a new index
        write_whole(run / ABOUT, json.dumps(about) + "\n")
    except (OSError, RuntimeError):
        why = f"{why}; it could not be kept in {run}"
    return index, why


def fingerprint(z: npt.NDArray[np.float32]) -> str:
    """Returns a name for the very bits of an array."""
    rows = np.ascontiguousarray(z)
    return hashlib.blake2b(rows.data, digest_size=16).hexdigest()


def _read(run: Path, about: dict[str, Any], key: bytes) -> tuple[Any, str]:
    try:
        known = json.loads(read_text(run / ABOUT, RunError))
    except (OSError, ValueError, RecursionError, RunError):
        return None, "there was none"
    if not isinstance(known, dict) or {**known, "seal": None} != {**about, "seal": None}:
        return None, "the embeddings have changed"
    index = empty_index(about["dim"])
    try:
        if not secrets.compare_digest(str(known.get("seal")), seal(run / INDEX, key)):
            return None, "the old one is damaged, or not of this user's making"
        index.load(str(run / INDEX))
    except (OSError, RuntimeError, ValueError):
        return None, "the old one is damaged"
    return (index, "") if len(index) == about["rows"] else (None, "the old one is damaged")
