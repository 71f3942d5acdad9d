"""The store: what goes in comes out, mapped; nothing half-written."""

import json

import numpy as np
import pytest
import scipy.sparse

from graphcl import Graph
from graphcl.errors import GraphError, InvalidInputError, StoreError
from graphcl.store.columns import Names, ScaledFeatures
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


def test_what_is_opened_is_mapped_and_read_only(graph, tmp_path):
    graph.save(tmp_path / "g")
    again = Graph.open(tmp_path / "g")
    for value in (again.indptr, again.indices, again.x, again.y, again.train_mask):
        assert isinstance(value, np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            value[0] = 0
    assert again.indices.dtype == np.int32


@pytest.mark.parametrize(("features", "error"), [("float16", 1e-3), ("int8", 1 / 250)])
def test_narrow_features_stay_near(graph, tmp_path, features, error):
    graph.save(tmp_path / "g", features=features)
    again = Graph.open(tmp_path / "g")
    largest = np.abs(graph.x).max(axis=0)
    assert (np.abs(np.asarray(again.x, dtype=np.float32) - graph.x) <= error * largest).all()
    again.save(tmp_path / "h", features="float32")  # and a store can be stored again
    np.testing.assert_array_equal(
        Graph.open(tmp_path / "h").x, np.asarray(again.x, dtype=np.float32)
    )


def test_scaled_features_index_like_an_array(graph, tmp_path):
    graph.save(tmp_path / "g", features="int8")
    x = Graph.open(tmp_path / "g").x
    assert isinstance(x, ScaledFeatures)
    whole = np.asarray(x)
    assert (x.shape, x.ndim, len(x), x.size) == (whole.shape, 2, len(whole), whole.size)
    for rows in (3, slice(2, 9), np.array([5, 1]), whole[:, 0] > 0):
        np.testing.assert_array_equal(x[rows], whole[rows])


def test_sparse_features_and_names_survive(tmp_path):
    x = scipy.sparse.random_array((30, 9), density=0.2, rng=0, dtype=np.float32).tocsr()
    names = [f"näme {number}" for number in range(30)]
    graph = Graph.from_edge_index([[0, 1], [2, 3]], x, node_ids=names)
    graph.save(tmp_path / "g")
    again = Graph.open(tmp_path / "g", verify=True)
    assert (again.x != graph.x).nnz == 0
    assert isinstance(again.node_ids, Names)
    assert again.node_ids.tolist() == list(again.node_ids) == names
    assert (again.node_ids[3], again.node_ids[-1]) == (names[3], names[-1])
    assert again.node_ids[np.array([4, 0])].tolist() == [names[4], names[0]]
    assert np.asarray(again.node_ids).tolist() == names
    again.save(tmp_path / "h")
    assert Graph.open(tmp_path / "h").node_ids.tolist() == names


def test_whole_numbers_are_names_too(tmp_path):
    graph = Graph.from_edge_index([[0], [1]], np.eye(3), node_ids=[10, 2**40, 7])
    graph.save(tmp_path / "g")
    assert Graph.open(tmp_path / "g").node_ids.tolist() == [10, 2**40, 7]


def test_names_of_other_kinds_are_refused(tmp_path):
    graph = Graph.from_edge_index([[0], [1]], np.eye(2), node_ids=[(0, 1), (1, 1)])
    with pytest.raises(GraphError, match=r"text; got \(0, 1\)"):
        graph.save(tmp_path / "g")
    assert list(tmp_path.iterdir()) == []


def test_a_value_beyond_float16_is_refused(tmp_path):
    graph = Graph.from_edge_index([[0], [1]], [[1.0, 2.0], [3.0, 1e6]])
    with pytest.raises(GraphError, match=r"1000000\.0 at node 1, feature 1 does not fit float16"):
        graph.save(tmp_path / "g", features="float16")
    assert list(tmp_path.iterdir()) == []


def test_a_store_without_edges(tmp_path):
    graph = Graph.from_edge_index([[], []], np.eye(4))
    graph.save(tmp_path / "g")
    again = Graph.open(tmp_path / "g", verify=True)
    assert (again.num_edges, again.num_nodes) == (0, 4)


def test_nothing_is_overwritten_unasked(graph, tmp_path):
    graph.save(tmp_path / "g")
    with pytest.raises(StoreError, match="already holds a store"):
        graph.save(tmp_path / "g")
    random_graph(1).save(tmp_path / "g", overwrite=True)
    np.testing.assert_array_equal(Graph.open(tmp_path / "g").x, random_graph(1).x)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(StoreError, match="no store"):
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


def test_a_flipped_bit_is_found_by_verify(graph, tmp_path):
    graph.save(tmp_path / "g")
    file = tmp_path / "g" / "x.npy"
    data = bytearray(file.read_bytes())
    data[-7] ^= 1
    file.write_bytes(data)
    Graph.open(tmp_path / "g").check()  # no danger to memory
    with pytest.raises(StoreError, match=r"x\.npy: altered or damaged"):
        Graph.open(tmp_path / "g", verify=True)


def test_checksums_do_not_depend_on_threads(tmp_path, monkeypatch):
    from graphcl.files import checksums

    monkeypatch.setattr(checksums, "CHUNK_BYTES", 1000)
    (tmp_path / "f").write_bytes(np.random.default_rng(0).bytes(12_345))
    digests = {checksums.file_digest(tmp_path / "f", threads=count) for count in (1, 4)}
    assert len(digests) == 1
    (tmp_path / "f").write_bytes(b"")
    assert len(checksums.file_digest(tmp_path / "f")) == 64
