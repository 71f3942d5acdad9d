import numpy as np
import pytest

from graphcl.answers.inputs import embeddings_of, ids_of
from graphcl.errors import GraphError


class Model:
    def transform(self, graph):
        return np.ones((graph.num_nodes, 2), np.float32)


def test_embeddings_come_from_an_array_a_table_or_a_model(graph):
    import pandas

    assert embeddings_of(Model(), graph, "x").shape == (60, 2)
    assert embeddings_of(pandas.DataFrame(np.eye(60)), graph, "x").shape == (60, 60)
    assert embeddings_of([np.ones((20, 2)), np.ones((40, 2))], graph, "x").shape == (60, 2)
    assert embeddings_of([[1.0, 2.0], [3, 4]], None, "x").tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("wrong", [np.ones(60), np.ones((60, 0)), np.full((60, 2), "a")])
def test_what_is_no_table_of_numbers_is_refused(wrong, graph):
    with pytest.raises(GraphError, match=r"x: embeddings must be numbers \[nodes, dim\]"):
        embeddings_of(wrong, graph, "x")


def test_sizes_must_fit_and_a_model_needs_a_graph(graph):
    with pytest.raises(GraphError, match="3 embeddings for a graph of 60 nodes"):
        embeddings_of(np.eye(3), graph, "x")
    with pytest.raises(GraphError, match="a model needs the graph"):
        embeddings_of(Model(), None, "x")


def test_ids_of_a_graph_without_any_are_numbers(graph):
    assert ids_of(graph, np.eye(60)).tolist() == list(range(60))
    assert ids_of(None, np.eye(3)).tolist() == [0, 1, 2]
