import numpy as np
import pytest

from graphcl import Graph
from graphcl.answers.labels import known_labels
from graphcl.answers.learning import learn


@pytest.fixture(scope="module")
def drawn():
    """Two classes that edges keep apart, and rows that say little."""
    random = np.random.default_rng(0)
    y = np.arange(300) % 2
    ends = random.integers(0, 300, (2, 4000))
    ends = ends[:, (y[ends[0]] == y[ends[1]]) & (ends[0] != ends[1])][:, :900]
    x = (random.normal(size=(300, 3)) + 0.4 * y[:, None]).astype(np.float32)
    return Graph.from_edge_index(ends, x), x, y


@pytest.mark.parametrize("kind", ["classes", "number"])
def test_a_labelled_node_is_answered_as_if_it_had_no_label(drawn, kind):
    graph, x, y = drawn
    labels = y if kind == "classes" else y + x[:, 0] / 3
    known = known_labels(labels, np.arange(300)).only(np.arange(300) < 100)
    learned = learn(x, np.arange(300), known, graph=graph)
    rows = np.array([250, 3, 99, 100])
    plain, fair = learned.of_rows(rows), learned.with_held_out(learned.of_rows(rows), rows)
    np.testing.assert_array_equal(fair[[0, 3]], plain[[0, 3]])
    held = learned.probe.held_out[[3, 99]]
    if kind == "classes":
        np.testing.assert_allclose(fair[[1, 2]], held, rtol=1e-6)
        assert learned.smoothing is not None
    else:
        np.testing.assert_allclose(fair[[1, 2], 0], held)
        np.testing.assert_allclose(np.diff(fair, axis=1), np.diff(plain, axis=1))  # as wide
    assert sum(learned.weights.values()) == pytest.approx(1)


def test_a_new_node_with_the_same_neighbours_is_answered_alike(drawn):
    graph, x, y = drawn
    known = known_labels(y, np.arange(300)).only(np.arange(300) < 100)
    learned = learn(x, np.arange(300), known, graph=graph)
    relation, rows = graph.only_relation, np.array([150, 251])
    near = [relation.indices[relation.indptr[row] : relation.indptr[row + 1]] for row in rows]
    found = learned.of_new(x[rows], x[rows], near)
    np.testing.assert_allclose(found, learned.of_rows(rows), atol=1e-5)
    alone = learned.of_new(x[rows], x[rows], [near[0][:0], near[1]])
    np.testing.assert_allclose(alone[1], found[1], atol=1e-6)
    assert np.isfinite(alone).all()
