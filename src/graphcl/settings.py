"""The bounds of every setting, written once: a recipe and the part that uses it check the same."""

from collections.abc import Callable
from typing import Any

from graphcl.errors import require

PRECISIONS = ("auto", "float32", "tf32", "bf16")
_INFINITY = float("inf")

_BOUNDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "layers": (lambda v: 1 <= v <= 64, "in [1, 64]"),
    "dim": (lambda v: 1 <= v <= 65536, "in [1, 65536]"),
    "edge_drop": (lambda v: 0 <= v < 1, "in [0, 1)"),
    "feature_drop": (lambda v: 0 <= v < 1, "in [0, 1)"),
    "temperature": (lambda v: 0 < v < _INFINITY, "positive"),
    "epochs": (lambda v: v >= 1, "at least 1"),
    "batch_nodes": (lambda v: v >= 0, "0 (all nodes) or more"),
    "learning_rate": (lambda v: 0 < v < _INFINITY, "positive"),
    "weight_decay": (lambda v: 0 <= v < _INFINITY, "0 or more"),
    "feature_scaling": (lambda v: v in ("none", "row"), "'none' or 'row'"),
    "precision": (lambda v: v in PRECISIONS, "'auto', 'float32', 'tf32' or 'bf16'"),
    "mode": (lambda v: v in ("auto", "full", "sampled"), "'auto', 'full' or 'sampled'"),
    "fan_out": (lambda v: 1 <= v <= 65536, "in [1, 65536]"),
}


def check_setting(owner: str, name: str, value: Any) -> None:
    """Refuses a value out of bounds; a setting without bounds is always right.

    Args:
        owner: who asks, for the message: ``recipe``, or the part that uses the setting.
        name: the setting, as recipes call it.
        value: of the setting's type.

    Raises:
        ParameterError: in the house's template.
    """
    if name in _BOUNDS:
        holds, constraint = _BOUNDS[name]
        require(holds(value), owner, name, constraint, value)
