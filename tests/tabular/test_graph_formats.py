from pathlib import Path

import networkx
import numpy as np
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from graphcl.graphs.structural import FEATURE_NAMES
from graphcl.tabular.build import load_tables, read_tables
from graphcl.tabular.options import TableOptions
from tests.conftest import FUZZ
from tests.tabular.conftest import edges_of, graph_or_one_line, write


def test_a_matrix_of_scipy_with_its_isolated_nodes_and_weights():
    matrix = scipy.sparse.coo_array(([2.0, 3.0], ([0, 1], [1, 2])), shape=(5, 5))
    scipy.sparse.save_npz("a.npz", matrix)
    graph, report = load_tables("a.npz", TableOptions(weight="value", features="structural"))
    assert graph.num_nodes == 5
    assert report.first[0] == "warning: 2 of 5 nodes have no edge"
    assert graph.edge_weight.tolist() == [2, 2, 3, 3]
    assert graph.node_ids is None


def test_a_directed_graph_file_has_its_nodes_and_their_attributes():
    graph = networkx.DiGraph([("a", "b")])
    graph.add_nodes_from([("a", {"age": 3}), ("b", {"age": 4}), ("c", {"age": 5})])
    networkx.write_graphml(graph, "directed.graphml")
    nodes = read_tables("directed.graphml", directed=True).type("node")
    assert (nodes.node_ids.tolist(), nodes.x.tolist()) == (["a", "b", "c"], [[3], [4], [5]])


def test_attributes_of_a_graph_file_are_columns():
    there = networkx.path_graph(3)
    networkx.set_node_attributes(there, {0: 1.5, 1: 2.5, 2: 3.5}, "size")
    networkx.set_node_attributes(there, {0: "x", 1: "y", 2: "x"}, "kind")
    networkx.write_graphml(there, "g.graphml")
    graph = read_tables("g.graphml", label="kind")
    assert graph.x[:, 0].tolist() == [1.5, 2.5, 3.5]
    assert graph.y.tolist() == [0, 1, 0]
    assert graph.node_ids.tolist() == ["0", "1", "2"]


def test_features_as_matrices():
    write("e.csv", "source,target\n0,1\n1,2\n")
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    np.save("x.npy", x)
    assert np.array_equal(read_tables("e.csv", "x.npy").x, x)
    scipy.sparse.save_npz("x.npz", scipy.sparse.csr_array(x))
    sparse = read_tables("e.csv", "x.npz").x
    assert np.array_equal(sparse.toarray(), x)
    write("n.csv", "source,target\nu,v\nv,w\n")
    np.savez("named.npz", x=x, node_ids=["w", "v", "u"], y=[0, 1, 0], train_mask=[0])
    graph = read_tables("n.csv", "named.npz")
    assert graph.node_ids.tolist() == ["w", "v", "u"]
    assert graph.y.tolist() == [0, 1, 0]
    assert np.flatnonzero(graph.train_mask).tolist() == [0]
    assert edges_of(graph) == {("u", "v"), ("v", "w")}
    both = read_tables("e.csv", "x.npz", features="both")
    assert both.x.shape == (3, 2 + len(FEATURE_NAMES))


@FUZZ
@given(st.data(), st.sampled_from(["npy", "npz"]))
def test_damaged_feature_matrices(data, kind):
    name = f"x.{kind}"
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    if kind == "npy":
        np.save(name, x)
    else:
        np.savez(name, x=x, node_ids=np.arange(4))
    content = bytearray(Path(name).read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    Path(name).write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    Path("e.csv").write_text("source,target\n0,1\n")
    graph_or_one_line("e.csv", nodes=name)
