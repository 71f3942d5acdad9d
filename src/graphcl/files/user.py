"""This user's own files: what can be made again, and the key that seals what this user made."""

import hashlib
import os
import secrets
from pathlib import Path

KEY = "index-key"


def user_cache() -> Path:
    """Returns the folder of files that can be made again; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graphcl"


def user_key() -> bytes:
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


def seal(path: Path, key: bytes) -> str:
    """Returns a digest of a file that only the holder of `key` can compute."""
    digest = hashlib.blake2b(key=key, digest_size=32)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
