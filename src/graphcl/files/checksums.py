"""Computes checksums of large files on all cores.

A file's digest is the SHA-256 of the SHA-256 digests of its chunks of 64 MiB, in order. Chunks are
hashed in parallel, so hashing a gigabyte takes about as long as reading it.
"""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CHUNK_BYTES = 1 << 26
_PIECE_BYTES = 1 << 20  # bytes read at a time, which bounds a thread's memory


def file_digest(path: Path, *, threads: int = 0) -> str:
    """Returns the digest of a file, 64 hex digits.

    Args:
        path: a regular file.
        threads: how many chunks are hashed in parallel; 0 uses one thread per core.
    """
    size = path.stat().st_size
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        digests = pool.map(lambda start: _chunk_digest(path, start), range(0, size, CHUNK_BYTES))
        return hashlib.sha256(b"".join(digests)).hexdigest()


def _chunk_digest(path: Path, start: int) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        left = CHUNK_BYTES
        while left and (piece := file.read(min(left, _PIECE_BYTES))):
            digest.update(piece)
            left -= len(piece)
    return digest.digest()
