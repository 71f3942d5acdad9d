"""The graph container, its checks, its conversion from and to other libraries, and its tensors."""

from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph

__all__ = ["Graph", "GraphCollection"]
