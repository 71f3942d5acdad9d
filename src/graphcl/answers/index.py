"""An index of a run's embeddings, stored in the run and rebuilt when they change.

usearch does not validate the files that it reads, so a forged index could crash the process. An
index is therefore read only if this user's key has sealed it. Otherwise it is rebuilt.
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
    """Returns an index over the rows of `z`, and why it was built (empty if it was read).

    If the run cannot be written to, the index is kept in memory only.
    """
    digest = hashlib.blake2b(np.ascontiguousarray(z).data, digest_size=16).hexdigest()
    about = {"embeddings": digest, "rows": len(z), "dim": int(z.shape[1])}
    key = user_key()
    index, why = _read(run, about, key)
    if index is not None:
        return index, ""
    index = build_index(unit_rows(z))
    try:
        with whole_file(run / INDEX) as staging:
            index.save(str(staging))
            about["seal"] = seal(staging, key)
            # A crash before the next write must not leave the old description with the new index.
            (run / ABOUT).unlink(missing_ok=True)
        write_whole(run / ABOUT, json.dumps(about) + "\n")
    except (OSError, RuntimeError):
        why = f"{why}; it could not be stored in {run}"
    return index, why


def _read(run: Path, about: dict[str, Any], key: bytes) -> tuple[Any, str]:
    try:
        known = json.loads(read_text(run / ABOUT, RunError))
    except (OSError, ValueError, RecursionError, RunError):
        return None, "none was stored"
    if not isinstance(known, dict) or {**known, "seal": None} != {**about, "seal": None}:
        return None, "the embeddings have changed"
    index = empty_index(about["dim"])
    try:
        if not secrets.compare_digest(str(known.get("seal")), seal(run / INDEX, key)):
            return None, "the stored one is damaged, or another user built it"
        index.load(str(run / INDEX))
    except (OSError, RuntimeError, ValueError):
        return None, "the stored one is damaged"
    return (index, "") if len(index) == about["rows"] else (None, "the stored one is damaged")
