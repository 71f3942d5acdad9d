"""Stores from tables, plain and typed, against the tables read in memory."""

from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphcl.errors import GraphError, StoreError
from graphcl.graphs.graph import Graph
from graphcl.store.columns import Names
from graphcl.store.header import read_store
from graphcl.tabular.build import build_store, load_tables, open_prepared
from graphcl.tabular.options import TableOptions
from tests.tabular.conftest import write


def test_a_store_is_the_graph(tmp_path):
    write("e.csv", "source,target,w\nä b,c,2\nc,d,1\nd,d,1\n")
    write("n.csv", "id,f,topic,part\nc,1,x,train\nä b,2,y,val\nd,3,x,test\n")
    options = TableOptions(nodes="n.csv", weight="w", label="topic", split="part")
    graph, _ = load_tables("e.csv", options)
    steps = []
    build_store("e.csv", options, out=tmp_path / "store", on_step=steps.append)
    stored = Graph.open(tmp_path / "store", verify=True)
    for name in ("indptr", "indices", "x", "y", "train_mask", "test_mask", "edge_weight"):
        assert np.array_equal(getattr(stored, name), getattr(graph, name)), name
    assert stored.node_ids.tolist() == graph.node_ids.tolist() == ["c", "ä b", "d"]
    assert (stored.self_loops_removed, stored.name) == (1, "e")
    assert steps[0].startswith("guessed: ids in 'id' of n.csv; ends in 'source' and 'target'")
    assert steps[1] == "reading the edges"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.csv", "n.csv", "store"]


def test_sparse_features_go_to_a_store_sparse(tmp_path):
    write("e.csv", "source,target\n0,1\n1,2\n")
    scipy.sparse.save_npz("x.npz", scipy.sparse.csr_array(np.eye(3, 40, dtype=np.float32)))
    build_store("e.csv", TableOptions(nodes="x.npz"), out=tmp_path / "store")
    stored = Graph.open(tmp_path / "store", verify=True)
    assert np.array_equal(stored.x.toarray(), np.eye(3, 40))


NODES = {"author": "authors.csv", "paper": "papers.csv", "topic": "topics.csv"}


@pytest.fixture(autouse=True)
def _small_blocks(_here, monkeypatch):
    monkeypatch.setattr("graphcl.tabular.entries.BLOCK", 3)
    monkeypatch.setattr("graphcl.tabular.duck.BATCH_ROWS", 2048)


def write_tables(random, edges=40):
    """Authors, papers with labels and a split, and topics without columns."""
    authors = [f"a{n},{random.integers(20, 80)},{random.choice(['uk', 'us'])}" for n in range(9)]
    parts = ["train", "val", "test"]
    papers = [f"{n},{random.normal():.3f},{'xyz'[n % 3]},{parts[n % 3]}" for n in range(12)]
    write("authors.csv", "\n".join(["name,age,country", *authors]) + "\n")
    write("papers.csv", "\n".join(["id,pages,topic,part", *papers]) + "\n")
    write("topics.csv", "id\nx\ny\nz\n")
    writes = [(random.integers(9), random.integers(12), random.normal()) for _ in range(edges)]
    rows = [f"a{a},{p},{w:.3f},{'pen' if w > 0 else 'ink'}" for a, p, w in writes]
    write("writes.csv", "\n".join(["author,paper,hours,with", *rows]) + "\n")
    cites = random.integers(0, 12, (edges, 2))
    rows = [f"{a},{b},{random.random() + 0.1:.3f}" for a, b in cites]
    write("cites.csv", "\n".join(["from,to,much", *rows]) + "\n")
    both = [f"{a},{b}" for a, b in cites] + [f"{b},{a}" for a, b in cites]
    write("near.csv", "\n".join(["from,to", *random.permutation(both)]) + "\n")
    write("on.csv", "paper,topic\n" + "".join(f"{n},{'xyz'[n % 3]}\n" for n in range(12)))


def assert_same(found, expected):
    """Two typed graphs have the same arrays."""
    assert list(found.nodes) == list(expected.nodes)
    assert list(found.relations) == list(expected.relations)
    for name, one in expected.nodes.items():
        for part, value in vars(one).items():
            if part not in ("preparation", "cells"):  # what nobody learns from is not stored
                assert_equal(vars(found.nodes[name])[part], value)
        assert repr(found.nodes[name].preparation) == repr(one.preparation)
    for key, one in expected.relations.items():
        for part, value in vars(one).items():
            if part != "preparation":
                assert_equal(vars(found.relations[key])[part], value)
        assert repr(found.relations[key].preparation) == repr(one.preparation)


def assert_equal(found, expected):
    if scipy.sparse.issparse(expected):
        assert (found != expected).nnz == 0
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(found, expected)
        assert np.asarray(found).dtype == expected.dtype or expected.dtype == object
    elif isinstance(expected, Names):
        assert found.tolist() == expected.tolist()
    else:
        assert found == expected


def built(options, out="store", edges=None):
    given = TableOptions(**options)
    report = build_store(edges, given, out=Path(out), overwrite=True)
    graph, same = load_tables(edges, given)
    assert report.to_json() == same.to_json()
    return open_prepared(Path(out)), graph


@pytest.mark.parametrize("seed", range(4))
def test_a_store_is_what_would_be_read(seed):
    write_tables(np.random.default_rng(seed))
    edges = {"writes": "writes.csv", "cites": "cites.csv", "near": "near.csv", "on": "on.csv"}
    options = {"nodes": NODES, "edges": edges, "label": "topic", "split": "part", "weight": "much"}
    found, expected = built(options)
    assert found.relation("near").undirected
    assert found.relation("writes").num_edge_features == 3
    assert found.relation("cites").edge_weight is not None
    assert_same(found, expected)
    expected.save("saved")
    builds = [read_store(Path(one)).build for one in ("saved", "store")]
    assert builds[0] == builds[1]  # every array is the same
    assert_same(*built(options | {"directed": True}))


def test_nodes_that_only_edges_name_and_lists_of_several_relations():
    write_tables(np.random.default_rng(0))
    knows = ["knows,a1,a2,", "knows,a3,a4,", "knows,a9,a1,"]
    writes = ["writes,a1,3,5", "writes,a7,4,6", "writes,a7,99,7"]
    write("mixed.csv", "\n".join(["what,a,b,since", *knows, *writes]) + "\n")
    options = {"nodes": NODES, "relation": "what", "unknown_edges": "add", "ignore": "topic"}
    found, expected = built(options, edges="mixed.csv")
    assert found.type("paper").node_ids[-1] == 99
    assert found.relation("writes").edge_features.tolist() == [[5], [6], [7]]
    assert_same(found, expected)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from([1, 0.5, 3])), min_size=1
    ),
    st.booleans(),
    st.booleans(),
)
def test_merged_weighted_and_symmetric_lists_are_as_from_arrays(rows, mirrored, weighted):
    write("people.csv", "id\n0\n1\n2\n3\n4\n5\n")
    rows = rows + [(b, a, w) for a, b, w in rows] if mirrored else rows
    lines = [f"{a},{b},{w}" if weighted else f"{a},{b}" for a, b, w in rows]
    write("knows.csv", "\n".join(["a,b,w" if weighted else "a,b", *lines]) + "\n")
    options = {"nodes": {"person": "people.csv"}, "edges": {"knows": "knows.csv"}}
    found, expected = built(options | ({"weight": "w"} if weighted else {}))
    assert_same(found, expected)
    ends = np.array([row[:2] for row in rows]).T
    edges = {"edge_index": ends} | ({"edge_weight": [w for *_, w in rows]} if weighted else {})
    own = Graph.from_edges({"person": 6}, {("person", "knows", "person"): edges})
    for part, value in vars(own.relation("knows")).items():
        assert_equal(vars(found.relation("knows"))[part], value)


def test_nothing_is_left_behind_and_nothing_overwritten():
    write_tables(np.random.default_rng(0))
    options = TableOptions(nodes=NODES, edges={"writes": "writes.csv"}, ignore=("topic", "part"))
    Path("store").mkdir()
    (Path("store") / "mine.txt").write_text("mine")
    with pytest.raises(StoreError, match="store"):
        build_store(None, options, out=Path("store"), overwrite=True)
    write("writes.csv", "author,paper\na1,1\na77,2\n")
    with pytest.raises(GraphError, match="'a77'"):
        build_store(None, options, out=Path("other"))
    assert not Path("other").exists()
    assert (Path("store") / "mine.txt").read_text() == "mine"
    assert not [one for one in Path().iterdir() if "other" in one.name]
