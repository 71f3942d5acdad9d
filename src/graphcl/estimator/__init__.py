"""`GraphCL`: the method behind scikit-learn's verbs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphcl.estimator.model import GraphCL
    from graphcl.estimator.transformer import NotFittedError

__all__ = ["GraphCL", "NotFittedError"]

_HOMES = {"GraphCL": "model", "NotFittedError": "transformer"}


def __getattr__(name: str) -> Any:
    # Fetched on first use: scikit-learn takes a second to import, and `graphcl embed` needs none.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
