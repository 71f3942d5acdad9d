"""TOML out: flat tables of strings, numbers and booleans, which is all this package writes."""

import json
import math
from collections.abc import Mapping


def format_toml(values: Mapping[str, str | int | float | bool]) -> str:
    """Returns one ``key = value`` line per entry; `tomllib` reads back the same mapping."""
    return "".join(f"{key} = {_literal(value)}\n" for key, value in values.items())


def _literal(value: str | int | float | bool) -> str:
    if isinstance(value, str):
        # A TOML basic string is a JSON string, but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return repr(value)
