"""GraphCL: node embeddings of attributed graphs without labels (Hafidi et al., 2020)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphcl.answers.grouping import cluster
    from graphcl.answers.linking import evaluate_links, links
    from graphcl.answers.prediction import predict
    from graphcl.answers.similar import neighbors
    from graphcl.datasets import load_dataset
    from graphcl.errors import GraphCLError
    from graphcl.estimator.model import GraphCL, probe_scorer
    from graphcl.evaluation.probe import linear_probe
    from graphcl.graphs.collection import GraphCollection
    from graphcl.graphs.graph import Graph
    from graphcl.losses import nt_xent
    from graphcl.opening import open_graph
    from graphcl.recipes import Recipe
    from graphcl.run import Run
    from graphcl.tabular.build import read_tables

# Where each public name lives. It is fetched on first use: torch and scikit-learn take seconds to
# import, and `graphcl --help` needs neither.
_HOMES = {
    "Graph": "graphcl.graphs.graph",
    "GraphCL": "graphcl.estimator.model",
    "GraphCLError": "graphcl.errors",
    "GraphCollection": "graphcl.graphs.collection",
    "Recipe": "graphcl.recipes",
    "Run": "graphcl.run",
    "cluster": "graphcl.answers.grouping",
    "evaluate_links": "graphcl.answers.linking",
    "linear_probe": "graphcl.evaluation.probe",
    "links": "graphcl.answers.linking",
    "load_dataset": "graphcl.datasets",
    "neighbors": "graphcl.answers.similar",
    "nt_xent": "graphcl.losses",
    "open_graph": "graphcl.opening",
    "predict": "graphcl.answers.prediction",
    "probe_scorer": "graphcl.estimator.model",
    "read_tables": "graphcl.tabular.build",
}

__all__ = [
    "Graph",
    "GraphCL",
    "GraphCLError",
    "GraphCollection",
    "Recipe",
    "Run",
    "cluster",
    "evaluate_links",
    "linear_probe",
    "links",
    "load_dataset",
    "neighbors",
    "nt_xent",
    "open_graph",
    "predict",
    "probe_scorer",
    "read_tables",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = import_module("graphcl.version").package_version()
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'graphcl' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
