import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from graphcl import Graph
from graphcl.answers.inputs import known_labels
from graphcl.answers.learning import learn
from graphcl.evaluation import calibration
from tests.conftest import random_graph


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


@pytest.fixture
def learnable():
    """Embeddings of a graph with three classes, its labels, and how often a probe was fitted."""
    graph = random_graph()
    z = np.random.default_rng(0).standard_normal((graph.num_nodes, 8)).astype(np.float32)
    y = np.where(np.arange(graph.num_nodes) % 4 == 0, -1, graph.y)
    return z, np.arange(len(z)), y, graph


def fits(monkeypatch):
    made = []

    def counted(*given, _fit=calibration._fit, **options):
        made.append(1)
        return _fit(*given, **options)

    monkeypatch.setattr(calibration, "_fit", counted)
    return made


@pytest.mark.parametrize("several", [False, True])
def test_what_a_folder_keeps_gives_the_same_answers(tmp_path, monkeypatch, learnable, several):
    z, ids, y, graph = learnable
    if several:
        y = np.where(y[:, None] < 0, -1, np.stack([y == 0, y > 0], axis=1))
    made, known = fits(monkeypatch), known_labels(y, ids)
    first, second = (learn(z, ids, known, graph=graph, folder=tmp_path) for _ in range(2))
    assert len(made) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["labels.safetensors"]
    anew = learn(z, ids, known, graph=graph)
    rows = np.arange(len(z))
    for one in (second, anew):
        assert one.weights == first.weights
        assert one.probe.error == first.probe.error
        np.testing.assert_array_equal(one.of_rows(rows), first.of_rows(rows))
        held = one.with_held_out(one.of_rows(rows), rows)
        np.testing.assert_array_equal(held, first.with_held_out(first.of_rows(rows), rows))


@pytest.mark.parametrize("what", ["labels", "embeddings", "edges", "seed"])
def test_what_was_learned_of_something_else_is_not_read(tmp_path, monkeypatch, learnable, what):
    z, ids, y, graph = learnable
    made = fits(monkeypatch)
    learn(z, ids, known_labels(y, ids), graph=graph, folder=tmp_path)
    before = (tmp_path / "labels.safetensors").read_bytes()
    if what == "labels":
        y = np.where(np.arange(len(y)) == 1, (y + 1) % 3, y)
    if what == "embeddings":
        z = z + np.float32(1e-6) * (np.arange(len(z)) == 1)[:, None]
    if what == "edges":
        ends = graph.edge_index()
        graph = Graph.from_edge_index(ends[:, ends.min(axis=0) > 0], graph.x)
    how = {"seed": 1} if what == "seed" else {}
    found = learn(z, ids, known_labels(y, ids), graph=graph, folder=tmp_path, **how)
    assert len(made) == 2
    assert (tmp_path / "labels.safetensors").read_bytes() != before
    rows, anew = np.arange(len(z)), learn(z, ids, known_labels(y, ids), graph=graph, **how)
    np.testing.assert_array_equal(found.of_rows(rows), anew.of_rows(rows))


def test_a_damaged_file_is_written_anew(tmp_path, monkeypatch, learnable):
    z, ids, y, graph = learnable
    made, path = fits(monkeypatch), tmp_path / "labels.safetensors"
    known, rows = known_labels(y, ids), np.arange(len(z))
    first = learn(z, ids, known, graph=graph, folder=tmp_path)
    whole, tensors = path.read_bytes(), safetensors.numpy.load_file(path)
    with safetensors.safe_open(path, "numpy") as file:
        said = json.loads(file.metadata()["labels"])
    name = next(one for one in tensors if one.startswith("weight"))
    term = {**said["terms"][0], "place": 10**6}

    def saved(arrays, about):
        text = about if isinstance(about, str) else json.dumps(about)
        return safetensors.numpy.save(arrays, metadata={"labels": text})

    wrong = [
        whole[:-40],
        whole[:-1] + bytes([whole[-1] ^ 1]),
        b"",
        safetensors.numpy.save(tensors),
        saved({**tensors, name: tensors[name][:, 1:]}, said),
        saved({**tensors, name: tensors[name].astype(np.int64)}, said),
        saved({"shares": tensors["shares"]}, said),
        saved(tensors, "["),
        saved(tensors, []),
        saved(tensors, {"of": said["of"]}),
        saved(tensors, {**said, "terms": [term]}),
        saved(tensors, {**said, "terms": []}),
        saved(tensors, {**said, "error": {}}),
    ]
    for count, content in enumerate(wrong, start=2):
        path.write_bytes(content)
        found = learn(z, ids, known, graph=graph, folder=tmp_path)
        assert len(made) == count
        assert path.read_bytes() == whole
        np.testing.assert_array_equal(found.of_rows(rows), first.of_rows(rows))


def test_two_that_begin_together_learn_once(tmp_path, monkeypatch, learnable):
    z, ids, y, graph = learnable
    made, known = fits(monkeypatch), known_labels(y, ids)
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(learn, z, ids, known, graph=graph, folder=tmp_path) for _ in "ab"]
        for one in both:
            one.result()
    assert len(made) == 1
