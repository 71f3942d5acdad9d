"""The key `exceptions` of a recipe: what differs by relation or by node type.

It is a text such as ``writes.edge_drop=0.1, cites.fan_out=3, author.feature_drop=0.2``. A relation
is named by its name, or by ``source:name:target`` if several have that name.
"""

from typing import Any

from graphcl.errors import ParameterError, typed
from graphcl.settings import check_setting

KINDS: dict[str, Any] = {"edge_drop": float, "feature_drop": float, "fan_out": int}


def parse_exceptions(text: str) -> dict[str, dict[str, Any]]:
    """Returns for each key its values by name; ``none`` has none.

    Raises:
        ParameterError: a part is not NAME.KEY=VALUE, or the value is out of bounds.
    """
    found: dict[str, dict[str, Any]] = {key: {} for key in KINDS}
    for part in () if text == "none" else (one.strip() for one in text.split(",")):
        left, equals, value = part.rpartition("=")
        name, dot, key = left.strip().rpartition(".")
        if not (equals and dot and name) or key not in KINDS:
            known = ", ".join(KINDS)
            raise ParameterError(
                f"recipe: exceptions must be like writes.edge_drop=0.1, with a key of {known}; "
                f"got {part!r}"
            )
        number = typed(
            value.strip(), KINDS[key], owner="recipe: exceptions", key=left.strip(), texts=True
        )
        check_setting("recipe: exceptions", key, number)
        found[key][name] = number
    return found
