"""The bounds of every setting, defined once for recipes and for the parts that use them."""

from collections.abc import Callable
from typing import Any

from graphcl.errors import require

PROBE_STEPS = 4000  # of the probe of several labels; it has converged then
TOPOLOGIES = ("auto", "asked")  # how a process reads the edges of other parts
LINE_EVERY_SECONDS = 5.0  # between lines of progress, where there is no terminal
LINKS_BY = ("model", "embeddings", "common_neighbours", "adamic_adar")  # what ranks links
LABEL_KINDS = ("auto", "classes", "number")  # what a column of labels has
PRECISIONS = ("auto", "float32", "tf32", "bf16")
# Keys of a recipe that only some encoders take, all beyond the paper, and what turns them off.
ENCODER_OPTIONS = {
    "normalisation": "none",
    "side_by_side": False,
    "own_features": 0.0,
    "repeat_own": False,
    "smoothed_features": 0.0,
}
WITH_OPTIONS = ("mean", "residual")
_INFINITY = float("inf")

_BOUNDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "layers": (lambda v: 1 <= v <= 64, "in [1, 64]"),
    "dim": (lambda v: 1 <= v <= 65536, "in [1, 65536]"),
    "edge_drop": (lambda v: 0 <= v < 1, "in [0, 1)"),
    "feature_drop": (lambda v: 0 <= v < 1, "in [0, 1)"),
    "temperature": (lambda v: 0 < v < _INFINITY, "positive"),
    "epochs": (lambda v: v >= 1, "at least 1"),
    "steps": (lambda v: v >= 0, "0 (no bound) or more"),
    "batch_nodes": (lambda v: v >= 0, "0 (all nodes) or more"),
    "learning_rate": (lambda v: 0 < v < _INFINITY, "positive"),
    "weight_decay": (lambda v: 0 <= v < _INFINITY, "0 or more"),
    "feature_scaling": (
        lambda v: v in ("none", "row", "unit", "auto"),
        "'none', 'row', 'unit' or 'auto'",
    ),
    "precision": (lambda v: v in PRECISIONS, "'auto', 'float32', 'tf32' or 'bf16'"),
    "mode": (lambda v: v in ("auto", "full", "sampled"), "'auto', 'full' or 'sampled'"),
    "normalisation": (lambda v: v in ("none", "layer"), "'none' or 'layer'"),
    "contrast": (lambda v: bool(v.strip()), "'each', 'all' or names of types"),
    "own_features": (lambda v: 0 <= v < 1, "in [0, 1)"),
    "smoothed_features": (lambda v: 0 <= v < 1, "in [0, 1)"),
    "fan_out": (lambda v: 1 <= v <= 65536, "in [1, 65536]"),
}


def check_setting(owner: str, name: str, value: Any) -> None:
    """Checks that a value is within its bounds; a setting without bounds accepts any value.

    Args:
        owner: named in the message: ``recipe``, or the part that uses the setting.
        name: the setting's name in recipes.
        value: of the setting's type.

    Raises:
        ParameterError: the value is out of bounds.
    """
    if name in _BOUNDS:
        holds, constraint = _BOUNDS[name]
        require(holds(value), owner, name, constraint, value)
