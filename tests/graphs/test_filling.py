import numpy as np
import scipy.sparse

from graphcl.graphs.filling import describe_filling, fill_features
from graphcl.graphs.graph import Graph
from graphcl.graphs.schema import Schema

PAPERS = np.array([[1.0, 0.0], [0.0, 4.0], [3.0, 1.0]])
WRITES, ON = ("author", "writes", "paper"), ("paper", "on", "topic")


def graph(papers=PAPERS, **relations):
    edges = {WRITES: {"edge_index": [[0, 0, 1], [0, 1, 1]], "edge_weight": [1.0, 3.0, 1.0]}}
    return Graph.from_edges({"author": 3, "paper": papers}, edges | relations)


def test_an_author_is_what_she_wrote():
    found, schema = fill_features(graph())
    assert np.allclose(found.nodes["author"].x, [[0.25, 3.0], [0, 4], [0, 0]])
    assert np.array_equal(found.nodes["paper"].x, PAPERS)
    assert [one.filled for one in schema.types] == ["neighbours", "given"]
    assert describe_filling(schema) == (
        "nodes of type 'author' have no features: they get the means of their neighbours' "
        "features (2 columns)"
    )
    sparse, _ = fill_features(graph(scipy.sparse.csr_array(PAPERS)))
    assert np.allclose(sparse.nodes["author"].x.toarray(), found.nodes["author"].x)


def test_means_are_of_scaled_features_and_are_not_scaled_again():
    found, _ = fill_features(graph(), scale=lambda name, x: x * {"paper": 10}[name])
    assert np.allclose(found.nodes["author"].x, [[2.5, 30], [0, 40], [0, 0]])


def test_features_travel_as_far_as_they_must():
    nodes = {"user": 2, "order": 2, "product": np.array([[1.0], [3.0]])}
    relations = {
        ("user", "placed", "order"): [[0, 1], [0, 1]],
        ("order", "has", "product"): [[0, 0, 1], [0, 1, 1]],
    }
    found, schema = fill_features(Graph.from_edges(nodes, relations))
    assert found.nodes["order"].x.tolist() == [[2], [3]]
    assert found.nodes["user"].x.tolist() == [[2], [3]]
    assert [one.filled for one in schema.types] == ["neighbours", "neighbours", "given"]


def test_without_any_features_structure_tells_per_relation():
    relations = {("a", "r", "b"): [[0, 0, 1], [0, 1, 1]], ("a", "s", "a"): [[0], [1]]}
    bare = Graph.from_edges({"a": 3, "b": 2, "c": 1}, relations)
    found, schema = fill_features(bare)
    assert [one.num_features for one in schema.types] == [6, 2, 1]
    assert {one.filled for one in schema.types} == {"structure"}
    # Type a receives from b (r backwards), and from a in both directions of s.
    two = np.log([2, 3])
    expected = [[np.log(3), two.mean(), 0, 0, np.log(2), np.log(2)]]
    assert np.allclose(found.nodes["a"].x[:1], expected)
    assert np.allclose(found.nodes["b"].x[0], [np.log(2), np.log(3)])


def test_another_graph_gets_the_same_columns():
    topics = {ON: [[0, 1, 2], [0, 0, 1]], ("author", "likes", "author"): [[0], [1]]}
    whole = Graph.from_edges(
        {"author": 3, "paper": PAPERS, "topic": 2},
        {WRITES: [[0, 1], [0, 1]], **topics},
    )
    _, schema = fill_features(whole)
    less = Graph.from_edges({"paper": PAPERS[:1], "author": 2}, {})
    found, same = fill_features(less, schema)
    assert same is schema
    assert np.array_equal(np.asarray(found.nodes["author"].x.todense()), np.zeros((2, 2)))
    assert Schema.from_json(schema.to_json()) == schema
