"""Reads small text files with a size limit, checks what JSON has, and formats TOML."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from graphcl.errors import InvalidInputError, demand
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
    demand(size <= limit, f"{path}: has {size} bytes; at most {limit} are read", error)
    with path.open("rb") as file:
        data = file.read(limit)
    try:
        return data.decode()
    except UnicodeDecodeError as problem:
        raise error(f"{path}: not text ({problem})") from None


_WORDS = {str: "a text", int: "a count", bool: "true or false", dict: "an object"}


def check_fields(
    values: Any, types: Mapping[str, Any], where: str, error: type[InvalidInputError]
) -> dict[str, Any]:
    """Returns fields of an object as JSON has it, with tuples for lists; others are left out.

    Args:
        values: the object; it may be anything.
        types: of each field: `str`, `bool`, `dict`, `int` for a count, or a tuple of these.
        where: begins messages.
        error: what is raised.

    Raises:
        InvalidInputError: of the type `error`: a field is missing, or of another type.
    """
    found = {}
    for name, kind in types.items():
        value: Any = values.get(name) if isinstance(values, dict) else None
        if not _fits(value, kind):
            of = get_args(kind)
            said = f"a list, each {_WORDS[of[0]]}" if of else _WORDS[kind]
            raise error(f"{where}: {name} must be {said}; got {str(value)[:40]}")
        found[name] = tuple(value) if get_args(kind) else value
    return found


def _fits(value: Any, kind: Any) -> bool:
    if each := get_args(kind):
        many = isinstance(value, list | tuple) and (each[-1] is Ellipsis or len(value) == len(each))
        return many and all(_fits(one, each[0]) for one in value)
    return type(value) is kind and (kind is not int or 0 <= value < 1 << 48)


def format_toml(values: Mapping[str, str | int | float | bool]) -> str:
    """Returns one ``key = value`` line per entry; `tomllib` reads back the same mapping."""
    return "".join(f"{key} = {_literal(value)}\n" for key, value in values.items())


def _literal(value: str | int | float | bool) -> str:
    if isinstance(value, str):
        # A TOML basic string is a JSON string, except that TOML also requires DEL to be escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)  # TOML writes inf and nan as Python does
