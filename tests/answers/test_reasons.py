import numpy as np
import pytest
import scipy.sparse

import graphcl
from graphcl import Graph
from graphcl.answers.answering import Answerer
from graphcl.answers.inputs import known_labels
from graphcl.answers.learning import learn
from graphcl.answers.reasons import LEAST, NAMED, TRIED, OwnColumns
from graphcl.answers.rivals import plain_rivals


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
    found = Answerer(learned, graph, np.arange(300)).reasons(rows, places)
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


@pytest.fixture(scope="module")
def asked():
    """A step in the third column, which trees see and regressions do not; embeddings of noise."""
    random = np.random.default_rng(0)
    x = random.normal(size=(400, 3)).astype(np.float32)
    y = (np.abs(x[:, 2]) > 1).astype(int)
    graph = Graph.from_edge_index(random.integers(0, 400, (2, 500)), x)
    z = random.normal(size=(400, 4)).astype(np.float32)
    names = np.array(["good", "bad"])[y]
    return z, graph, {row: names[row] for row in range(200)}


RIVALS = ["logistic regression", "boosted trees", "boosted trees with neighbours"]


@pytest.mark.parametrize("using", RIVALS)
def test_reasons_of_a_rival_are_what_it_says_when_a_column_is_the_average(asked, using):
    """Each effect is the rival's own answer, minus its answer for the changed node."""
    z, graph, labels = asked
    found = graphcl.predict(z, graph, labels, why=True, using=using)
    known = known_labels(labels, np.arange(400))
    seen = np.flatnonzero(known.known)
    means = np.zeros_like(graph.x)
    for u in range(400):
        near = graph.indices[graph.indptr[u] : graph.indptr[u + 1]]
        means[u] = graph.x[near].mean(axis=0) if len(near) else 0
    plain = plain_rivals(
        graph.x[seen], means[seen], known.targets[seen], kind="classes", names=seen
    )
    (rival,) = [one for one in plain if one.name == using]
    bad = list(found.classes).index("bad")
    assert found.towards == "bad"
    for place in range(0, 200, 40):
        row = found.rows[place]
        x, near = graph.x[[row]], means[[row]]
        answer = rival.predict(x, near)[0, bad]
        for name, effect in found.reasons[place].columns:
            other = x.copy()
            other[0, int(name.removeprefix("feature "))] = graph.x[:, int(name[-1])].mean()
            expected = answer - rival.predict(other, near)[0, bad]
            assert effect == pytest.approx(expected, abs=1e-5)
        assert found.reasons[place].like == ()
        assert ("neighbours" in found.reasons[place].parts) == using.endswith("neighbours")
    if using == "boosted trees":
        first = [one.columns[0][0] for one in found.reasons if one.columns]
        assert np.mean([name == "feature 2" for name in first]) > 0.9


def test_a_rival_that_looks_at_nothing_has_no_reasons(asked):
    z, graph, labels = asked
    found = graphcl.predict(z, graph, labels, why=True, using="majority")
    assert found.reasons == ()
    assert "why" not in found.columns()


def test_reasons_of_two_classes_are_towards_the_wanted_one(asked):
    z, graph, labels = asked
    effects = {}
    for wanted in ("good", "bad"):
        found = graphcl.predict(z, graph, labels, why=True, using="boosted trees", wanted=wanted)
        assert found.towards == wanted
        assert {one.towards for one in found.reasons} == {wanted}
        parts = [one.parts["own columns"] for one in found.reasons]
        effects[wanted] = dict(zip(found.ids.tolist(), parts, strict=True))
    first = next(iter(effects["bad"]))  # the node that is most probably bad
    assert effects["bad"][first] > 0.5
    for node, effect in effects["good"].items():
        assert effect == pytest.approx(-effects["bad"][node], abs=1e-5)


def test_reasons_of_more_classes_are_towards_the_predicted_one(graph):
    random = np.random.default_rng(0)
    found = graphcl.predict(
        random.normal(size=(60, 8)), graph, np.arange(60) % 3, why=True, nodes="all"
    )
    assert found.towards == "the predicted class"
    best = found.probabilities.argmax(axis=1)
    unseen = [str(found.classes[one]) for one in best.tolist()]
    assert [one.towards for one in found.reasons] == unseen


def test_shares_that_change_an_answer_change_its_reasons(asked):
    z, graph, labels = asked
    how = {"why": True, "using": "boosted trees", "nodes": [399, 350]}
    plain = graphcl.predict(z, graph, labels, **how)
    rare = graphcl.predict(z, graph, labels, shares={"good": 0.99, "bad": 0.01}, **how)
    assert abs(rare.reasons[0].parts["own columns"]) != abs(plain.reasons[0].parts["own columns"])


def test_many_columns_and_sparse_ones():
    """Of many columns those are tried that tell something; dense and sparse tables agree."""
    random = np.random.default_rng(0)
    x = (random.random((300, 60)) < 0.2).astype(np.float32)
    y = x[:, 41].astype(int)
    edges = random.integers(0, 300, (2, 400))
    labels = np.where(np.arange(300) < 150, y, -1)
    z = random.normal(size=(300, 4)).astype(np.float32)
    both = []
    for table in (x, scipy.sparse.csr_array(x)):
        graph = Graph.from_edge_index(edges, table)
        found = graphcl.predict(z, graph, labels, why=True, using="logistic regression")
        both.append(found.reasons)
        named = [one.columns[0][0] for one in found.reasons]
        assert np.mean([name == "feature 41" for name in named]) > 0.9
        assert max(len(one.columns) for one in found.reasons) <= NAMED
        columns = OwnColumns.of_nodes(graph, known_labels(labels, np.arange(300)))
        assert len(columns.names) > TRIED
    for dense, sparse in zip(*both, strict=True):
        assert dense.columns[0][0] == sparse.columns[0][0]
        assert dense.columns[0][1] == pytest.approx(sparse.columns[0][1], abs=0.02)


def test_a_category_is_one_column_and_has_its_name(tmp_path):
    random = np.random.default_rng(0)
    plan, colour = random.integers(0, 3, 200), random.integers(0, 4, 200)
    lines = [f"n{i},{'abc'[plan[i]]},{'wxyz'[colour[i]]}" for i in range(200)]
    (tmp_path / "nodes.csv").write_text("id,plan,colour\n" + "\n".join(lines))
    pairs = [f"n{a},n{b}" for a, b in random.integers(0, 200, (300, 2)) if a != b]
    (tmp_path / "edges.csv").write_text("source,target\n" + "\n".join(pairs))
    graph = graphcl.read_tables(tmp_path / "edges.csv", tmp_path / "nodes.csv")
    labels = np.where(np.arange(200) < 120, (plan == 1).astype(int), -1)
    z = random.normal(size=(200, 4)).astype(np.float32)
    for using in (None, "boosted trees"):
        found = graphcl.predict(z, graph, labels, why=True, using=using)
        named = {name for one in found.reasons for name, _ in one.columns}
        assert named <= {"plan", "colour"}
        first = [
            one.columns[0]
            for one, row in zip(found.reasons, found.rows, strict=True)
            if plan[row] == 1
        ]
        assert np.mean([name == "plan" and effect > 0 for name, effect in first]) > 0.9
        assert all(abs(effect) >= LEAST for one in found.reasons for _, effect in one.columns)
