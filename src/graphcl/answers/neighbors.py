"""An index of a run's embeddings, kept beside them and built anew when they change.

usearch's reader believes what an index says, so one that somebody else made could crash it. Only an
index that this user's own key has sealed is read; any other is built again.
"""

import hashlib
import json
import os
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.errors import RunError
from graphcl.evaluation.nearest import build_index, empty_index, unit_rows
from graphcl.files.cache import user_cache
from graphcl.files.text import read_text

INDEX, ABOUT, KEY = "neighbors.usearch", "neighbors.json", "index-key"


def stored_index(run: Path, z: npt.NDArray[np.float32]) -> tuple[Any, str]:
    """Returns an index over the rows of `z`, and why it was built (empty where it was read).

    A run that cannot be written to is served from memory.
    """
    about = {"embeddings": fingerprint(z), "rows": len(z), "dim": int(z.shape[1])}
    key = _key()
    index, why = _read(run, about, key)
    if index is not None:
        return index, ""
    index = build_index(unit_rows(z))
    staging = run / f".{INDEX}.partial"
    try:
        index.save(str(staging))
        about["seal"] = _seal(staging, key)
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


def _read(run: Path, about: dict[str, Any], key: bytes) -> tuple[Any, str]:
    try:
        known = json.loads(read_text(run / ABOUT, RunError))
    except (OSError, ValueError, RecursionError, RunError):
        return None, "there was none"
    if not isinstance(known, dict) or {**known, "seal": None} != {**about, "seal": None}:
        return None, "the embeddings have changed"
    index = empty_index(about["dim"])
    try:
        if not secrets.compare_digest(str(known.get("seal")), _seal(run / INDEX, key)):
            return None, "the old one is damaged, or not of this user's making"
        index.load(str(run / INDEX))
    except (OSError, RuntimeError, ValueError):
        return None, "the old one is damaged"
    return (index, "") if len(index) == about["rows"] else (None, "the old one is damaged")


def _seal(path: Path, key: bytes) -> str:
    digest = hashlib.blake2b(key=key, digest_size=32)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _key() -> bytes:
    """Returns this user's key, made on first use; where it cannot be kept, one for this process."""
    path = user_cache() / KEY
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            found = path.read_bytes()[:64]
        else:
            with os.fdopen(handle, "wb") as file:
                found = secrets.token_bytes(32)
                file.write(found)
    except OSError:
        found = b""
    return found if len(found) == 32 else secrets.token_bytes(32)
