import numpy as np
import pytest

from benchmarks.typed_graphs import ONLY, telling_graph, typed_graph_of_size
from graphcl import GraphCL, linear_probe
from graphcl.errors import ParameterError

SMALL = {"dim": 64, "epochs": 40, "batch_nodes": 256, "device": "cpu", "seed": 0}


@pytest.mark.parametrize("only", ONLY)
def test_only_what_types_know_tells_the_class(only):
    graph = telling_graph(only, 400)
    name = graph.labelled_type
    z = GraphCL(**SMALL).fit_transform(graph)[name]
    assert linear_probe(z, graph.nodes[name]).accuracy >= 0.95
    flat = graph.flatten()
    plain = GraphCL(**SMALL).fit_transform(flat)
    assert linear_probe(plain, flat).accuracy < 0.65


def test_a_seed_decides_the_graph_and_what_is_asked_must_exist():
    first, again, other = (telling_graph("relation", 60, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(first.nodes["user"].x, again.nodes["user"].x)
    assert not np.array_equal(first.nodes["user"].x, other.nodes["user"].x)
    with pytest.raises(ParameterError, match="only must be 'relation'"):
        telling_graph("colour")


def test_a_graph_of_any_size_has_four_types_and_six_relations():
    graph = typed_graph_of_size(1000, 5000, 8)
    assert (len(graph.nodes), len(graph.relations), graph.num_nodes) == (4, 6, 1000)
    assert 4800 < graph.num_edges <= 5000
    assert graph.relation("knows").undirected
