import numpy as np
import pytest

import graphcl
from graphcl import Graph
from graphcl.answers.inputs import known_labels
from graphcl.answers.learning import learn
from graphcl.answers.reasons import explain


def drawn(decides, seed=0):
    """Nodes whose class is in their own first column, or in that of their neighbours."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(300, 4)).astype(np.float32)
    ends = np.stack([np.arange(300), random.permutation(300)])
    graph = Graph.from_edge_index(ends[:, ends[0] != ends[1]], x)
    relation = graph.only_relation
    around = np.array(
        [
            x[relation.indices[a:b], 0].mean() if b > a else 0
            for a, b in zip(relation.indptr[:-1], relation.indptr[1:], strict=True)
        ]
    )
    tells = x[:, 0] if decides == "own columns" else around
    z = np.concatenate([x, around[:, None], random.normal(size=(300, 3))], axis=1)
    return graph, z.astype(np.float32), tells


PARTS = {"own columns": slice(0, 4), "neighbours": slice(4, 5), "their neighbours": slice(5, 8)}


@pytest.mark.parametrize("decides", ["own columns", "neighbours"])
@pytest.mark.parametrize("kind", ["classes", "number"])
def test_the_part_that_decides_is_named(decides, kind):
    graph, z, tells = drawn(decides)
    labels = (tells > 0).astype(int) if kind == "classes" else tells + 1e-6
    known = known_labels(labels, np.arange(300)).only(np.arange(300) < 120)
    learned = learn(z, np.arange(300), known, graph=graph, parts=PARTS)
    rows = np.flatnonzero(tells > 0.5)
    rows = rows[rows >= 120]
    places = np.full(len(rows), 1 if kind == "classes" else 0)
    found = explain(learned, rows, places, graph=graph, ids=np.arange(300))
    assert len(found) == len(rows)
    other = ({*PARTS} - {decides} - {"their neighbours"}).pop()
    speak = [one.parts[decides] > abs(one.parts[other]) for one in found]
    assert np.mean(speak) > 0.9
    if decides == "own columns":
        named = [one.columns[0][0] == "feature 0" and one.columns[0][1] > 0 for one in found]
        assert np.mean(named) > 0.9
        assert "columns: feature 0 +" in str(found[0])


def test_similar_nodes_are_the_nearest_labelled_ones_and_never_the_node_itself():
    graph, z, tells = drawn("own columns")
    labels = {row: "high" if tells[row] > 0 else "low" for row in range(60)}
    found = graphcl.predict(z, graph, labels, nodes="all", why=True, rivals=False)
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    for place in (0, 7, 150):
        row = int(found.rows[place])
        cosine = unit[row] @ unit[:60].T
        cosine[row : row + 1] = -np.inf if row < 60 else cosine[row : row + 1]
        expected = np.argsort(-cosine)[:3].tolist()
        assert [one for one, _ in found.reasons[place].like] == expected
        assert [label for _, label in found.reasons[place].like] == [
            labels[one] for one in expected
        ]
    assert found.columns()["why"][0] == str(found.reasons[0])
