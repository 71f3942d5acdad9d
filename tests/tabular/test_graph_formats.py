import networkx
import scipy.sparse

from graphcl.tabular.build import load_tables, read_tables
from graphcl.tabular.options import TableOptions


def test_a_matrix_of_scipy_with_its_isolated_nodes_and_weights():
    matrix = scipy.sparse.coo_array(([2.0, 3.0], ([0, 1], [1, 2])), shape=(5, 5))
    scipy.sparse.save_npz("a.npz", matrix)
    graph, report = load_tables("a.npz", TableOptions(weight="value", features="structural"))
    assert (graph.num_nodes, report.isolated_nodes) == (5, 2)
    assert graph.edge_weight.tolist() == [2, 2, 3, 3]
    assert graph.node_ids is None


def test_attributes_of_a_graph_file_are_columns():
    there = networkx.path_graph(3)
    networkx.set_node_attributes(there, {0: 1.5, 1: 2.5, 2: 3.5}, "size")
    networkx.set_node_attributes(there, {0: "x", 1: "y", 2: "x"}, "kind")
    networkx.write_graphml(there, "g.graphml")
    graph = read_tables("g.graphml", label="kind")
    assert graph.x[:, 0].tolist() == [1.5, 2.5, 3.5]
    assert graph.y.tolist() == [0, 1, 0]
    assert graph.node_ids.tolist() == ["0", "1", "2"]
