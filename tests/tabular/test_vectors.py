"""Vectors beside a table: their rows in its order, or by ids, as plain loops place them."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse

from graphcl.errors import GraphError, RunError, TableError
from graphcl.graphs.graph import Graph
from graphcl.tabular import features
from graphcl.tabular.build import build_store, load_tables, read_tables
from graphcl.tabular.options import TableOptions
from graphcl.tabular.preparation import read_preparation, write_preparation
from tests.tabular.conftest import write

V = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def _files(monkeypatch):
    monkeypatch.setattr(features, "BLOCK_VALUES", 6)  # two rows at a time
    write("e.csv", "source,target\na,b\nb,c\n")
    write("n.csv", "id,age\na,1\nb,2\nc,3\nd,4\n")
    np.save("v.npy", V)


def read(**options):
    return load_tables("e.csv", TableOptions(**{"nodes": "n.csv"} | options))


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int8", ">f8", "F"])
def test_rows_are_in_the_order_of_the_table(kind):
    stored = np.asfortranarray(V) if kind == "F" else (V * 9).astype(kind)
    np.save("v.npy", stored)
    graph, report = read(vectors="v.npy")
    assert np.array_equal(graph.x, np.column_stack([[1, 2, 3, 4], stored.astype(np.float32)]))
    assert report.column_features == ["age", "v[0]", "v[1]", "v[2]"]
    assert "vectors: v.npy: 3 numbers for each node" in report.notes
    assert (report.fates[-1].column, report.fates[-1].features) == ("vectors", 3)


def ids_as_file(ids, how):
    if how == "npy":
        np.save("ids.npy", np.array(ids))
        return "ids.npy"
    if how == "list":
        return ids
    header = {"txt": "", "csv": "id\n", "two": "id,rest\n"}[how]
    ending = ",x" if how == "two" else ""
    name = "ids.txt" if how == "txt" else "ids.csv"
    write(name, header + "".join(f"{one}{ending}\n" for one in ids))
    return name


@pytest.mark.parametrize("how", ["npy", "list", "txt", "csv", "two"])
def test_ids_place_them(how):
    given = ids_as_file(["d", "q", "a", "b"], how)
    graph, report = read(vectors="v.npy", vector_ids=given)
    for row, one in enumerate("abcd"):
        wanted = {"d": V[0], "a": V[2], "b": V[3]}.get(one, np.zeros(3))
        assert np.array_equal(graph.x[row, 1:], wanted)
    assert "vectors: 1 id is of no node: left out" in report.notes
    assert "vectors: 1 node has none: zeros" in report.notes


def test_numbers_as_ids_and_no_node_table():
    write("e.csv", "source,target\n10,2\n2,30\n")
    graph, _ = load_tables("e.csv", TableOptions(vectors="v.npy", vector_ids=[30, 10, 2, 99]))
    assert graph.node_ids.tolist() == [2, 10, 30]
    assert np.array_equal(graph.x, V[[2, 1, 0]])
    with pytest.raises(TableError, match="pass their ids with vector_ids"):
        load_tables("e.csv", TableOptions(vectors="v.npy"))


def test_sparse_and_stored(tmp_path, monkeypatch):
    dense, _ = read(vectors="v.npy", vector_ids=list("dcba"))
    monkeypatch.setattr(features, "SPARSE_WIDTH", 1)
    monkeypatch.setattr(features, "SPARSE_SHARE", 1.0)
    sparse, _ = read(vectors="v.npy", vector_ids=list("dcba"))
    assert scipy.sparse.issparse(sparse.x)
    assert sparse.x.has_canonical_format
    assert np.array_equal(sparse.x.toarray(), dense.x)
    build_store("e.csv", TableOptions(nodes="n.csv", vectors="v.npy"), out=tmp_path / "s")
    assert np.array_equal(Graph.open(tmp_path / "s", verify=True).x.toarray()[:, 1:], V)
    assert read_preparation(tmp_path / "s/nodes-0").vectors.features == ("v[0]", "v[1]", "v[2]")


def test_a_model_takes_vectors_of_its_width(tmp_path):
    graph, _ = read(vectors="v.npy")
    write_preparation(tmp_path, graph.preparation)
    kept = read_preparation(tmp_path)
    assert kept == graph.preparation
    assert (kept.vectors.low, kept.vectors.high) == (V.min(), V.max())
    np.save("new.npy", V * 100)
    again, report = read(vectors="new.npy", preparation=kept)
    assert np.array_equal(again.x[:, 1:], V * 100)
    assert any("far outside the training's range" in note for note in report.notes)
    np.save("new.npy", V[:, :2])
    with pytest.raises(TableError, match="vectors of 2 numbers; in training they had 3"):
        read(vectors="new.npy", preparation=kept)
    with pytest.raises(GraphError, match="the model was trained with vectors; pass vectors"):
        read(preparation=kept)
    for change in ({"missing": "two"}, {"low": float("inf")}, {"name": 3}):
        forged = replace(kept, vectors=replace(kept.vectors, **change))
        try:
            write_preparation(tmp_path, forged)
        except ValueError:  # JSON has no infinity
            continue
        with pytest.raises(RunError, match="damaged"):
            read_preparation(tmp_path)


def test_the_range_is_of_training_rows():
    write("n.csv", "id,age,part\na,1,train\nb,2,train\nc,3,test\nd,4,\n")
    graph, _ = read(vectors="v.npy", split="part", inductive=True)
    assert (graph.preparation.vectors.low, graph.preparation.vectors.high) == (
        V[:2].min(),
        V[:2].max(),
    )


BROKEN = V.copy()
BROKEN[2, 1] = np.nan
NO_TABLE = r"expected numbers \[nodes, width\]"


@pytest.mark.parametrize(
    ("stored", "given", "error", "message"),
    [
        (V[:3], {}, TableError, r"v.npy: vectors: 3 rows for 4 rows of n.csv"),
        (V[:3], {"vector_ids": ["a", "b"]}, GraphError, "2 ids for 3 vectors"),
        (V[:3], {"vector_ids": ["a", "b", "a"]}, TableError, "rows 1 and 3 have the same id 'a'"),
        (V[:3], {"vector_ids": ["x", "y", "z"]}, TableError, "none of the ids is a node's"),
        (V[:3], {"vector_ids": ["a", "b", "c"], "strict": True}, TableError, "1 node has none"),
        (V, {"vector_ids": ["a"], "vectors": None}, GraphError, "there are no vectors"),
        (BROKEN, {}, TableError, r"nan in row 2, number 1 \(from 0\)"),
        (BROKEN, {"vector_ids": list("dcba")}, TableError, r"nan in row 2, number 1 \(from 0\)"),
        (np.full((4, 1), 1e300), {}, TableError, r"1e\+300 in row 0"),
        *((wrong, {}, GraphError, NO_TABLE) for wrong in (V[0], V[None], np.zeros((4, 0)))),
        (np.array(["a", "b"]), {}, GraphError, NO_TABLE),
        (None, {}, GraphError, r"v\.npy: damaged"),
        (V, {"vectors": "nowhere.npy"}, GraphError, "no such file"),
        (V, {"vectors": "n.csv"}, GraphError, r"takes an \.npy file"),
    ],
)
def test_what_is_wrong_is_said(stored, given, error, message):
    if stored is None:
        write("v.npy", "no array")
    else:
        np.save("v.npy", stored)
    with pytest.raises(error, match=message):
        read(**{"vectors": "v.npy"} | given)


def test_arrays_from_python_beside_tags():
    write("t.csv", "id,tag\na,x\nd,y\n")
    graph = read_tables("e.csv", "n.csv", vectors=V, tags="t.csv")
    assert graph.preparation.features == [
        "age",
        "tag=x",
        "tag=y",
        *(f"vectors[{i}]" for i in range(3)),
    ]
    assert np.array_equal(graph.x[:, 3:], V)
