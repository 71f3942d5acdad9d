"""Reads small text files with a size limit, and formats TOML."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from graphcl.errors import InvalidInputError
from graphcl.files.arrays import regular_size

TEXT_BYTES = 1 << 20  # a larger configuration is an attack or a mistake


def read_text(path: Path, error: type[InvalidInputError], *, limit: int = TEXT_BYTES) -> str:
    """Returns the text of a regular file of at most `limit` bytes.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidInputError: of the type `error`: the file is too large, is not UTF-8 text, or is a
            pipe or a device.
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


def format_toml(values: Mapping[str, str | int | float | bool]) -> str:
    """Returns one ``key = value`` line per entry; `tomllib` reads back the same mapping."""
    return "".join(f"{key} = {_literal(value)}\n" for key, value in values.items())


def _literal(value: str | int | float | bool) -> str:
    if isinstance(value, str):
        # A TOML basic string is a JSON string, except that TOML also requires DEL to be escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return repr(value)
