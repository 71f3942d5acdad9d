"""Small text files, read with a limit: a configuration of a gigabyte is none."""

from pathlib import Path

from graphcl.errors import InvalidInputError
from graphcl.files.npy import regular_size

TEXT_BYTES = 1 << 20


def read_text(path: Path, error: type[InvalidInputError], *, limit: int = TEXT_BYTES) -> str:
    """Returns the text of a regular file of at most `limit` bytes.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidInputError: of the type `error`: the file is too large, or no UTF-8 text; a pipe or
            a device, which would keep a reader waiting, is refused too.
    """
    size = regular_size(path, error)
    if size > limit:
        raise error(f"{path}: has {size} bytes; at most {limit} are read")
    with path.open("rb") as file:
        data = file.read(limit)
    try:
        return data.decode()
    except UnicodeDecodeError as problem:
        raise error(f"{path}: not text ({problem})") from None
