"""GraphCL: node embeddings of attributed graphs without labels (Hafidi et al., 2020)."""

from importlib.metadata import PackageNotFoundError, version

from graphcl.collection import GraphCollection
from graphcl.datasets import load_dataset
from graphcl.errors import GraphCLError
from graphcl.estimator import GraphCL
from graphcl.evaluation import linear_probe
from graphcl.graph import Graph
from graphcl.losses import nt_xent
from graphcl.tables import read_tables

try:
    __version__ = version("graphcl")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "Graph",
    "GraphCL",
    "GraphCLError",
    "GraphCollection",
    "linear_probe",
    "load_dataset",
    "nt_xent",
    "read_tables",
]
