"""The user's cache folder, and the user's key, which seals what this user wrote."""

import hashlib
import os
import secrets
from pathlib import Path

KEY = "index-key"


def user_cache() -> Path:
    """Returns the user's cache folder, which may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graphcl"


def user_key() -> bytes:
    """Returns the user's key, created on first use; a temporary one if it cannot be saved."""
    path = user_cache() / KEY
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            # O_EXCL: of two processes that start together, one creates the key.
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


def seal_text(text: str, key: bytes, *, purpose: str) -> str:
    """Returns a digest of a text that only the holder of `key` can compute.

    `purpose`, at most 16 bytes, keeps a seal of one kind from being taken for one of another.
    """
    digest = hashlib.blake2b(text.encode(), key=key, digest_size=32, person=purpose.encode())
    return digest.hexdigest()


def seal(path: Path, key: bytes) -> str:
    """Returns a digest of a file that only the holder of `key` can compute."""
    digest = hashlib.blake2b(key=key, digest_size=32)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
