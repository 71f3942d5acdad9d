"""A value as the type its key declares, from a command line's text or from TOML."""

from typing import Any

from graphcl.errors import ParameterError

_KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def typed(value: Any, kind: Any, *, owner: str, key: str) -> Any:
    """Returns `value` as `kind` (int, float, str or bool), from text or an exact number.

    Raises:
        ParameterError: it is none; `owner` and `key` say whose.
    """
    try:
        if kind is bool:
            return {"true": True, "false": False}[str(value).lower()]
        if isinstance(value, bool):
            raise ValueError
        if kind is str and not isinstance(value, str):
            raise ValueError
        result = kind(value)
        if not isinstance(value, str) and result != value:
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise ParameterError(f"{owner}: {key} must be {_KINDS[kind]}; got {value!r}") from None
    return result
