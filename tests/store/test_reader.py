"""Stores are mapped; damaged and forged ones are refused."""

import json
import os

import numpy as np
import pytest
import scipy.sparse

from graphcl import Graph
from graphcl.errors import StoreError
from graphcl.store import reader
from tests.conftest import random_graph
from tests.forging import described, npy, refused

pytestmark = pytest.mark.usefixtures("nothing_runs")


def changed(**changes):
    """Changes `store.json`; a dotted key reaches into the arrays."""

    def change(store):
        header = json.loads((store / "store.json").read_text())
        for key, value in changes.items():
            array, _, field = key.partition("__")
            if field:
                header["arrays"].setdefault(array, {})[field] = value
            else:
                header[key] = value
        (store / "store.json").write_text(json.dumps(header))

    return change


def text(content):
    return lambda store: (store / "store.json").write_text(content)


def filled(name, place, value):
    """Writes a wrong number into an array; its header and size stay as they were."""

    def change(store):
        np.load(store / f"{name}.npy", mmap_mode="r+")[place] = value

    return change


def replaced(name, content):
    return lambda store: (store / f"{name}.npy").write_bytes(content)


def cut(store):
    file = store / "x.npy"
    file.write_bytes(file.read_bytes()[:-40])


def piped(store):
    (store / "x.npy").unlink()
    os.mkfifo(store / "x.npy")


def endless(store):
    (store / "store.json").unlink()
    (store / "store.json").symlink_to("/dev/zero")


def unknown_array(store):
    changed(**{"../../../tmp/x__dtype": "float32"})(store)


def fortran(store):
    x = np.load(store / "x.npy")
    replaced("x", npy(header=described("<f4", x.shape, order=True), data=x.tobytes()))(store)


def eight_bits(store):
    x = np.load(store / "x.npy")
    changed(x__dtype="int8")(store)
    replaced("x", npy(x.astype(np.int8)))(store)


def row_scaled(store):
    eight_bits(store)
    about = {"sha256": "0" * 64, "dtype": "float32"}
    for name, values in (("x_scale", np.ones(12)), ("x_row_scale", np.full(60, np.nan))):
        replaced(name, npy(values.astype(np.float32)))(store)
        given = about | {"shape": list(values.shape)}
        changed(**{f"{name}__{key}": value for key, value in given.items()})(store)


STORES = {
    "not JSON": (text("{"), "not JSON"),
    "no object": (text("[1]"), "does not describe a store"),
    "long": (text(" " * 2**21), "at most 1048576 are read"),
    "deep": (text("[" * 100_000), "not JSON"),
    "many digits": (text('{"graphcl_store": ' + "9" * 10_000 + "}"), "not JSON"),
    "not text": (lambda store: (store / "store.json").write_bytes(b"\xff\xfe"), "not text"),
    "another format": (changed(graphcl_store=99), "store format 99"),
    "no arrays": (changed(arrays=None), "lacks name or arrays"),
    "absurd count": (changed(num_nodes=2**60), "num_nodes must be a count"),
    "negative count": (changed(num_nodes=-5), "num_nodes must be a count; got -5"),
    "a fraction": (changed(num_nodes=60.0), "num_nodes must be a count; got 60.0"),
    "zero nodes": (changed(num_nodes=0), "at least one node"),
    "other count": (changed(num_nodes=61), "does not fit 61 nodes"),
    "path as a name": (unknown_array, "unknown array"),
    "negative shape": (changed(x__shape=[-60, 12]), "x's shape must be a count; got -60"),
    "shape against header": (changed(x__shape=[60, 13]), "holds float32 (60, 12)"),
    "unknown dtype": (changed(x__dtype="object"), "x lacks a known dtype"),
    "dtype against header": (changed(x__dtype="float16"), "store.json says float16"),
    "cut": (cut, "its header needs"),
    "no such file": (lambda store: (store / "indices.npy").unlink(), "cannot be read"),
    "a pipe": (piped, "not a regular file"),
    "endless": (endless, "a graph file must be an .npz, a store or"),
    "object array": (replaced("x", npy(header=described("|O", (60, 12)))), "holds object (60, 12)"),
    "absurd header": (replaced("x", npy(header=described("<f4", (2**50, 12)))), "its header needs"),
    "code in a header": (
        replaced("x", npy(header="__import__('os').mkdir('was-run')")),
        "not an .npy",
    ),
    "column by column": (fortran, "holds float32"),
    "a row's scale": (row_scaled, "x_row_scale holds nan; expected 1 or more"),
    "no scale": (eight_bits, "has no array 'x_scale'"),
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


def test_a_store_without_edges(tmp_path):
    graph = Graph.from_edge_index([[], []], np.eye(4))
    graph.save(tmp_path / "g")
    again = Graph.open(tmp_path / "g", verify=True)
    assert (again.num_edges, again.num_nodes) == (0, 4)


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
    monkeypatch.setattr(reader, "CHUNK_BYTES", 1000)
    (tmp_path / "f").write_bytes(np.random.default_rng(0).bytes(12_345))
    digests = set()
    for cores in (1, 4):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        digests.add(reader.file_digest(tmp_path / "f"))
    assert len(digests) == 1
    (tmp_path / "f").write_bytes(b"")
    assert len(reader.file_digest(tmp_path / "f")) == 64
