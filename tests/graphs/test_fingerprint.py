from graphcl.graphs.fingerprint import fingerprint
from tests.conftest import random_graph


def test_the_fingerprint_tells_graphs_apart(graph):
    one = fingerprint((graph,))
    assert one == fingerprint((random_graph(),))
    assert one != fingerprint((graph, graph))
    assert one != fingerprint((random_graph(2),))
