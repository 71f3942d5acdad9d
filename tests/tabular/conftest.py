"""Tables to read, in a folder of their own."""

from pathlib import Path

import numpy as np
import pytest

from graphcl.errors import GraphCLError
from graphcl.tabular.build import load_tables
from graphcl.tabular.options import TableOptions

STRUCTURAL = {"features": "structural"}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, text):
    Path(name).write_text(text, encoding="utf-8")


def edges_of(graph):
    """The undirected edges as pairs of ids."""
    names = range(graph.num_nodes) if graph.node_ids is None else graph.node_ids.tolist()
    return {tuple(sorted((names[u], names[v]))) for u, v in graph.edge_index().T.tolist()}


def graph_or_one_line(edges, **options):
    """Reads tables; the result must be a valid graph or an error of ours, never a traceback."""
    message = ""
    try:
        graph, _ = load_tables(edges, TableOptions(**options))
    except GraphCLError as error:
        message = str(error)
    if message:
        assert len(message) < 1500
        return
    assert graph.indptr[-1] == len(graph.indices)
    assert np.isfinite(graph.x if isinstance(graph.x, np.ndarray) else graph.x.data).all()
    assert graph.num_nodes == len(graph.indptr) - 1 == graph.x.shape[0]
    assert graph.node_ids is None or len(graph.node_ids) == graph.num_nodes
