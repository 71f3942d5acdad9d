"""`GraphCL`: the method behind scikit-learn's verbs."""

from graphcl.estimator.model import GraphCL
from graphcl.estimator.transformer import NotFittedError

__all__ = ["GraphCL", "NotFittedError"]
