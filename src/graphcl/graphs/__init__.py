"""The graph container: its checks, its interchange with other libraries, its tensors."""

from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph

__all__ = ["Graph", "GraphCollection"]
