"""The user's cache folder, and the user's key, which seals what this user wrote."""

import hashlib
import os
import secrets
from functools import partial
from pathlib import Path

from filelock import FileLock

from graphcl.files.atomic import whole_file

KEY, KEY_BYTES = "index-key", 32


def user_cache() -> Path:
    """Returns the user's cache folder, which may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graphcl"


def user_key() -> bytes:
    """Returns the user's key, created on first use; a temporary one if it cannot be saved.

    The file appears whole, and one that is no key is replaced. A lock beside it lets processes that
    start together agree: the first one writes, the others read what it wrote.
    """
    path = user_cache() / KEY
    try:
        found = _read_key(path)
        if found is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_name(f".{KEY}.lock")):  # for as long as 32 bytes take
                found = _read_key(path)
                if found is None:
                    found = secrets.token_bytes(KEY_BYTES)
                    with whole_file(path) as staging:
                        staging.chmod(0o600)
                        staging.write_bytes(found)
    except OSError:
        return secrets.token_bytes(KEY_BYTES)
    return found


def _read_key(path: Path) -> bytes | None:
    """Returns the key in a file; None if there is no file, or it holds something else."""
    try:
        with path.open("rb") as file:
            found = file.read(KEY_BYTES + 1)
    except FileNotFoundError:
        return None
    return found if len(found) == KEY_BYTES else None


def seal_text(text: str, key: bytes, *, purpose: str) -> str:
    """Returns a digest of a text that only the holder of `key` can compute.

    `purpose`, at most 16 bytes, keeps a seal of one kind from being taken for one of another.
    """
    digest = hashlib.blake2b(text.encode(), key=key, digest_size=32, person=purpose.encode())
    return digest.hexdigest()


def seal(path: Path, key: bytes) -> str:
    """Returns a digest of a file that only the holder of `key` can compute."""
    with path.open("rb") as file:
        keyed = partial(hashlib.blake2b, key=key, digest_size=32)
        return hashlib.file_digest(file, keyed).hexdigest()
