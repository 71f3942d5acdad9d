"""Stores are mapped; damaged and forged ones are refused."""

import os

import numpy as np
import pytest
import scipy.sparse

from graphcl import Graph
from graphcl.errors import StoreError
from graphcl.store import reader
from tests.conftest import random_graph
from tests.forging import described, npy, refused, rewrite, stored

pytestmark = pytest.mark.usefixtures("nothing_runs")


PART, DIGEST = "part-00000/part.json", "0" * 64


def counted(*starts):
    """Changes the ranges of the nodes in `store.json`."""
    return lambda store: rewrite(store, lambda values: values["types"][0].update(starts=starts))


def changed(array, *digests):
    """Changes what `part.json` says of an array of the nodes."""

    def change(values):
        values["arrays"]["nodes-0"][array] = list(digests)

    return lambda store: rewrite(store, change, PART)


def header(**changes):
    return lambda store: rewrite(store, lambda values: values.update(changes))


def without_arrays(store):
    rewrite(store, lambda values: values.update(arrays=None), PART)


def text(content):
    return lambda store: (store / "store.json").write_text(content)


def filled(name, place, value):
    """Writes a wrong number into an array; its header and size stay as they were."""

    def change(store):
        np.load(stored(store, name), mmap_mode="r+")[place] = value

    return change


def replaced(name, content):
    return lambda store: (store / f"part-00000/nodes-0/{name}.npy").write_bytes(content)


def cut(store):
    file = stored(store, "x")
    file.write_bytes(file.read_bytes()[:-40])


def piped(store):
    file = stored(store, "x")
    file.unlink()
    os.mkfifo(file)


def endless(store):
    (store / "store.json").unlink()
    (store / "store.json").symlink_to("/dev/zero")


def fortran(store):
    x = np.load(stored(store, "x"))
    replaced("x", npy(header=described("<f4", x.shape, order=True), data=x.tobytes()))(store)


STORES = {
    "not JSON": (text("{"), "not JSON"),
    "no object": (text("[1]"), "does not describe a store"),
    "long": (text(" " * 2**25), "at most 16777216 are read"),
    "deep": (text("[" * 100_000), "not JSON"),
    "many digits": (text('{"graphcl_store": ' + "9" * 10_000 + "}"), "not JSON"),
    "not text": (lambda store: (store / "store.json").write_bytes(b"\xff\xfe"), "not text"),
    "another format": (header(graphcl_store=99), "store format 99"),
    "no arrays": (without_arrays, "arrays must be an object; got None"),
    "absurd count": (counted(0, 2**60), "type 0: starts must be a list, each a count"),
    "negative count": (counted(0, -5), "starts must be a list, each a count; got [0, -5]"),
    "a fraction": (counted(0, 60.0), "each a count; got [0, 60.0]"),
    "zero nodes": (counted(0, 0), "at least one node"),
    "other count": (counted(0, 61), "does not fit 61 nodes"),
    "path as a name": (changed("../../../tmp/x", DIGEST), "unknown array"),
    "no checksum": (changed("x"), "x must have a checksum, or three"),
    "no text": (changed("x", 7), "x must be a list, each a text"),
    "a patch": (changed("x", DIGEST, DIGEST, DIGEST), "a whole table; part.json says otherwise"),
    "other shape": (replaced("x", npy(np.zeros((60, 13), "f4"))), "does not fit 60 nodes"),
    "no rows": (replaced("x", npy(np.float32(1))), "does not fit 60 nodes"),
    "three dimensions": (replaced("y", npy(np.zeros((60, 1, 1), "i8"))), "does not fit 60 nodes"),
    "other dtype": (replaced("x", npy(np.zeros((60, 12), "i4"))), "holds int32; expected float32"),
    "other order of bytes": (replaced("x", npy(np.zeros((60, 12), ">f4"))), "holds >f4; expected"),
    "cut": (cut, "its header needs"),
    "no such file": (lambda store: stored(store, "indices").unlink(), "cannot be read"),
    "a pipe": (piped, "not a regular file"),
    "endless": (endless, "a graph file must be an .npz, a store or"),
    "object array": (replaced("x", npy(header=described("|O", (60, 12)))), "holds pickled objects"),
    "absurd header": (replaced("x", npy(header=described("<f4", (2**50, 12)))), "its header needs"),
    "code in a header": (
        replaced("x", npy(header="__import__('os').mkdir('was-run')")),
        "not an .npy",
    ),
    "column by column": (fortran, "holds float32"),
    "index beyond": (filled("indices", 3, 60), "indices holds 60; expected 0 to 59"),
    "index far beyond": (filled("indices", -1, 2**31 - 1), "indices holds 2147483647"),
    "negative index": (filled("indices", 0, -1), "indices holds -1"),
    "falling pointers": (filled("indptr", 7, 10**9), "indptr decreases at row 7"),
    "negative pointers": (filled("indptr", 7, -(2**40)), "indptr decreases at row 6"),
    "pointers that end elsewhere": (filled("indptr", -1, 10**6), "indptr goes from 0 to 1000000"),
    "pointers that begin elsewhere": (filled("indptr", 0, 5), "indptr goes from 5"),
}


@pytest.mark.parametrize("case", STORES)
def test_stores(case, tmp_path, capsys, bounded):
    make, message = STORES[case]
    random_graph().save("store")
    make(tmp_path / "store")
    refused(["train", "store", "--out", "run"], capsys, message)
    assert [file.name for file in tmp_path.iterdir()] == ["store"]


def test_a_store_whose_sparse_features_point_outside(tmp_path, capsys, bounded):
    x = scipy.sparse.csr_array(np.eye(60, 5, dtype=np.float32))
    Graph.from_edge_index(random_graph().edge_index(), x).save("store")
    filled("x_indices", 2, 5)(tmp_path / "store")
    refused(["train", "store", "--out", "run"], capsys, "x_indices holds 5; expected 0 to 4")


@pytest.mark.parametrize(
    ("name", "place", "value", "message"),
    [
        ("node_id_offsets", 5, 2**40, "node 4 has its name at bytes"),
        ("node_id_offsets", 5, -1, "node 4 has its name at bytes"),
        ("node_ids", 9, 0xFF, "is not UTF-8"),
    ],
)
def test_damaged_names(name, place, value, message, tmp_path, capsys, model, bounded):
    graph = random_graph()
    names = [f"node {number}" for number in range(60)]
    Graph.from_edge_index(graph.edge_index(), graph.x, node_ids=names).save("store")
    filled(name, place, value)(tmp_path / "store")
    refused(["embed", model, "store", "--out", "z.parquet"], capsys, message)
    assert not list(tmp_path.glob("*z.parquet*"))


def test_what_is_opened_is_mapped_and_read_only(graph, tmp_path):
    graph.save(tmp_path / "g")
    again = Graph.open(tmp_path / "g")
    for value in (again.indptr, again.indices, again.x, again.y, again.train_mask):
        assert isinstance(value, np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            value[0] = 0
    assert again.indices.dtype == np.int32


WRITES, KNOWS = ("author", "writes", "paper"), ("author", "knows", "author")


def library():
    random = np.random.default_rng(0)
    return Graph.from_edges(
        {
            "author": {"x": random.normal(size=(5, 2)), "node_ids": list("äbcde")},
            "paper": {
                "x": scipy.sparse.csr_array(np.eye(4)),
                "y": [0, 1, -1, 1],
                "train_mask": [0, 1],
                "val_mask": [3],
                "test_mask": [2],
                "class_names": ["no", "yes"],
            },
            "topic": 3,
        },
        {
            WRITES: {"edge_index": [[0, 1, 4], [3, 3, 0]], "edge_features": random.normal(size=3)},
            KNOWS: {
                "edge_index": [[0, 1], [1, 2]],
                "undirected": True,
                "edge_weight": [1.0, 2.0],
                "edge_features": [3.0, 4.0],
            },
            ("paper", "on", "topic"): np.zeros((2, 0), int),
        },
        name="library",
    )


@pytest.mark.parametrize("make", [library, random_graph])
def test_a_graph_there_and_back(tmp_path, make):
    before = make()
    before.save(tmp_path / "store")
    after = Graph.open(tmp_path / "store", verify=True)
    assert repr(after) == repr(before)
    assert (after.name, after.store) == (before.name, tmp_path / "store")
    assert [file.name for file in tmp_path.iterdir()] == ["store"]
    for name, one in before.nodes.items():
        other = after.nodes[name]
        for field in ("y", "train_mask", "val_mask", "test_mask", "node_ids"):
            assert np.array_equal(getattr(one, field), getattr(other, field)), field
        assert one.class_names == other.class_names
        assert (one.x is None) == (other.x is None)
        if isinstance(one.x, np.ndarray):
            assert np.array_equal(one.x, other.x)
            assert isinstance(other.x, np.memmap)
        elif one.x is not None:
            assert (one.x != other.x).nnz == 0
    for key, one in before.relations.items():
        other = after.relations[key]
        assert (one.undirected, one.key) == (other.undirected, other.key)
        for field in ("indptr", "indices", "edge_weight", "edge_features", "edge_ids"):
            assert np.array_equal(getattr(one, field), getattr(other, field)), field


@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        ("relation-0/indices", np.array([0, 1, 9]), "indices holds 9; expected 0 to 4"),
        ("relation-0/indices", np.array([0, -1, 1]), "indices holds -1"),
        ("relation-0/indptr", np.array([0, 1, 0, 1, 3]), "indptr decreases at row 1"),
        ("relation-0/indptr", np.array([0, 3]), "does not fit 3 entries"),
        ("relation-0/edge_features", np.zeros((2, 1), np.float32), "does not fit 3 entries"),
        ("relation-1/edge_ids", np.array([0, 0, 1, 2]), "edge_ids holds 2; expected 0 to 1"),
    ],
)
def test_damaged_relations_are_refused_when_they_are_opened(tmp_path, name, array, said):
    library().save(tmp_path)
    np.save(tmp_path / "part-00000" / f"{name}.npy", array)
    with pytest.raises(StoreError, match=said):
        Graph.open(tmp_path)


def test_a_store_without_edges(tmp_path):
    graph = Graph.from_edge_index([[], []], np.eye(4))
    graph.save(tmp_path / "g")
    again = Graph.open(tmp_path / "g", verify=True)
    assert (again.num_edges, again.num_nodes) == (0, 4)


def test_a_flipped_bit_is_found_by_verify(graph, tmp_path):
    graph.save(tmp_path / "g")
    file = stored(tmp_path / "g", "x")
    data = bytearray(file.read_bytes())
    data[-7] ^= 1
    file.write_bytes(data)
    Graph.open(tmp_path / "g").check()  # no danger to memory
    with pytest.raises(StoreError, match=r"x\.npy: altered or damaged"):
        Graph.open(tmp_path / "g", verify=True)


def test_checksums_do_not_depend_on_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "CHUNK_BYTES", 1000)
    (tmp_path / "f").write_bytes(np.random.default_rng(0).bytes(12_345))
    digests = set()
    for cores in (1, 4):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        digests.add(reader.file_digest(tmp_path / "f"))
    assert len(digests) == 1
    (tmp_path / "f").write_bytes(b"")
    assert len(reader.file_digest(tmp_path / "f")) == 64
