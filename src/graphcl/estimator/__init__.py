"""`GraphCL`: the method behind scikit-learn's verbs."""

from graphcl.estimator.model import GraphCL, NotFittedError

__all__ = ["GraphCL", "NotFittedError"]
