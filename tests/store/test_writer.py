"""What is written can be opened again; nothing is half-written or overwritten."""

import numpy as np
import pytest

from graphcl import Graph
from graphcl.errors import GraphError, StoreError
from graphcl.store.header import read_store
from graphcl.store.writer import StoreWriter, write_edges, write_nodes
from tests.conftest import random_graph


def test_a_value_beyond_float16_is_refused(tmp_path):
    graph = Graph.from_edge_index([[0], [1]], [[1.0, 2.0], [3.0, 1e6]])
    with pytest.raises(
        GraphError, match=r"1000000\.0 at node 1, feature 1 does not fit in float16"
    ):
        graph.save(tmp_path / "g", features="float16")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_unasked(graph, tmp_path):
    graph.save(tmp_path / "g")
    with pytest.raises(StoreError, match="already holds a store"):
        graph.save(tmp_path / "g")
    random_graph(1).save(tmp_path / "g", overwrite=True)
    np.testing.assert_array_equal(Graph.open(tmp_path / "g").x, random_graph(1).x)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(StoreError, match="not part of a store"):
        graph.save(tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years"


def fill(path, features, **given):
    with StoreWriter(path) as store:
        (nodes,) = store.add_type("node", [0, 1])
        nodes.write("x", features)
        (edges,) = store.add_relation(("node", "edge", "node"), undirected=True)
        for name, values in given.items():
            edges.write(name, values)


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(StoreError, match="unknown array"):
        fill(tmp_path / "g", X, **EDGES, thesis=np.zeros(3))
    assert list(tmp_path.iterdir()) == []


def test_a_writer_fills_maps_and_cuts_them(graph, tmp_path):
    with StoreWriter(tmp_path / "g", name="streamed") as store:
        (edges,) = store.add_relation(("node", "edge", "node"), undirected=True)
        edges.array("indptr", graph.indptr.shape, np.int64)[:] = graph.indptr
        room = edges.array("indices", (10 * len(graph.indices),), np.int32)
        room[: len(graph.indices)] = graph.indices
        edges.shorten("indices", len(graph.indices))
        edges.write("edge_weight", np.ones(len(graph.indices), dtype=np.float32))
        (nodes,) = store.add_type("node", [0, graph.num_nodes])
        nodes.array("x", graph.x.shape, np.float16)[:] = graph.x
    header = read_store(tmp_path / "g")
    assert (header.name, header.is_plain, header.num_features) == ("streamed", True, 12)
    assert (header.num_edges, len(header)) == (graph.num_edges, 1)
    again = Graph.open(tmp_path / "g", verify=True)
    assert again.indices.tolist() == graph.indices.tolist()
    assert again.edge_weight.shape == graph.indices.shape


X = np.ones((1, 1), dtype=np.float32)
EDGES = {"indptr": np.array([0, 0]), "indices": np.zeros(0, np.int32)}


def test_a_writer_refuses_what_would_not_open(tmp_path):
    indices = np.zeros(1, dtype=np.int32)
    with pytest.raises(StoreError, match="indptr goes from 0 to 9"):
        fill(tmp_path / "g", X, indptr=np.array([0, 9]), indices=indices)
    with pytest.raises(StoreError, match="nothing was written for 'indptr'"):
        fill(tmp_path / "g", X)
    with pytest.raises(StoreError, match="holds float64; expected float32 or float16"):
        fill(tmp_path / "g", np.ones((1, 1)), **EDGES)
    assert list(tmp_path.iterdir()) == []


def test_a_relation_can_be_taken_back(graph, tmp_path):
    graph.save(tmp_path / "one")
    with StoreWriter(tmp_path / "two", name="random") as store:
        (nodes,) = store.add_type("node", [0, graph.num_nodes])
        write_nodes(nodes, vars(graph.only_type))
        for key in (("node", "edge", "node"), ("node", "gone", "node")):
            (edges,) = store.add_relation(key, undirected=True)
            write_edges(edges, vars(graph.only_relation), narrow=True)
        store.drop_relation(key)
    builds = [read_store(tmp_path / one).build for one in ("one", "two")]
    assert builds[0] == builds[1]  # equal ids mean equal stores
