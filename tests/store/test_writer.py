"""What is written can be opened again; nothing is half-written or overwritten."""

import json

import numpy as np
import pytest

from graphcl import Graph
from graphcl.errors import GraphError, InvalidInputError, StoreError
from graphcl.store.writer import StoreWriter
from tests.conftest import random_graph

FIELDS = ("indptr", "indices", "y", "train_mask", "val_mask", "test_mask")


def arrays(graph):
    return {name: np.asarray(getattr(graph, name)) for name in FIELDS}


def test_a_graph_survives_the_store(graph, tmp_path):
    graph.save(tmp_path / "g")
    again = Graph.open(tmp_path / "g", verify=True)
    for name, value in arrays(graph).items():
        np.testing.assert_array_equal(value, arrays(again)[name])
    np.testing.assert_array_equal(graph.x, again.x)
    assert (again.name, again.node_ids, again.store) == ("random", None, tmp_path / "g")
    assert repr(again) == repr(graph)
    assert [file.name for file in tmp_path.iterdir()] == ["g"]


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


def fill(path, **given):
    with StoreWriter(path) as store:
        for name, values in given.items():
            store.write(name, values)


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(InvalidInputError, match="name must be one of"):
        fill(tmp_path / "g", indptr=np.array([0, 0]), thesis=np.zeros(3))
    assert list(tmp_path.iterdir()) == []


def test_a_writer_fills_maps_and_cuts_them(graph, tmp_path):
    with StoreWriter(tmp_path / "g", name="streamed") as store:
        store.array("indptr", graph.indptr.shape, np.int64)[:] = graph.indptr
        room = store.array("indices", (10 * len(graph.indices),), np.int32)
        room[: len(graph.indices)] = graph.indices
        store.shorten("indices", len(graph.indices))
        store.array("x", graph.x.shape, np.float16)[:] = graph.x
        store.write("edge_weight", np.ones(len(graph.indices), dtype=np.float32))
    header = json.loads((tmp_path / "g" / "store.json").read_text())
    assert header["num_features"] == 12
    assert np.load(tmp_path / "g" / "indices.npy").tolist() == graph.indices.tolist()
    assert np.load(tmp_path / "g" / "edge_weight.npy").shape == graph.indices.shape


def test_a_writer_refuses_what_would_not_open(tmp_path):
    x = np.ones((1, 1), dtype=np.float32)
    indices = np.zeros(1, dtype=np.int32)
    with pytest.raises(StoreError, match="indptr goes from 0 to 9"):
        fill(tmp_path / "g", indptr=np.array([0, 9]), indices=indices, x=x)
    with pytest.raises(StoreError, match="nothing was written for 'indptr'"):
        fill(tmp_path / "g")
    with pytest.raises(InvalidInputError, match="x must be float32 or float16 or int8; got"):
        fill(tmp_path / "g", x=np.ones((1, 1)))
    assert list(tmp_path.iterdir()) == []
