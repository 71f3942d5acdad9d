"""What a run answers, against the commands' own functions."""

import threading

import numpy as np
import pytest

from graphcl.answers.prediction import predict
from graphcl.answers.similar import neighbors
from graphcl.errors import RunError
from graphcl.estimator import GraphCL
from graphcl.evaluation.calibration import fit_calibrated
from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from graphcl.serving.asking import New
from graphcl.serving.run import NotYetError, ServedRun, UnknownError


def test_similar_nodes_are_those_of_the_command(served, a_run):
    graph = a_run[1]
    rows = np.array([0, 7, 59])
    found = served.near(served.z[rows], 5, list(rows[:, None]))
    expected = neighbors(np.asarray(served.z), [f"node {row}" for row in rows], 5, graph=graph)
    for one, nearest, cosines in zip(found, expected.nearest, expected.cosines, strict=True):
        assert one.rows.tolist() == nearest.tolist()
        np.testing.assert_allclose(one.cosines, cosines, atol=1e-6)


def test_similar_nodes_through_an_index(a_run, monkeypatch):
    monkeypatch.setattr("graphcl.serving.run.EXACT_ROWS", 10)
    by_index = ServedRun(*a_run)
    monkeypatch.undo()
    exact = ServedRun(*a_run)
    rows = np.arange(60)
    both = [one.near(one.z[rows], 4, list(rows[:, None])) for one in (by_index, exact)]
    same = [len(set(a.rows) & set(b.rows)) for a, b in zip(*both, strict=True)]
    assert np.mean(same) > 3.9


def test_more_similar_nodes_than_there_are(served):
    (found,) = served.near(served.z[:1], 1000, [np.array([0, 1])])
    assert sorted(found.rows.tolist()) == list(range(2, 60))


def test_predictions_are_those_of_the_command(served, a_run):
    expected = predict(np.asarray(served.z), a_run[1], nodes="all")
    found = served.predict(np.asarray(served.z), np.arange(60))
    names = expected.classes
    table = [[one["probabilities"][name] for name in names] for one in found]
    np.testing.assert_allclose(table, expected.probabilities, atol=1e-6)
    assert [one["label"] for one in found] == expected.labels


def test_labels_that_take_long_to_learn(a_run, monkeypatch):
    from graphcl.serving import run as module

    whole = ServedRun(*a_run).predict(np.ones((1, 24), np.float32))
    begun = threading.Event()

    def slow(*arguments, **options):
        begun.wait(10)
        return fit_calibrated(*arguments, **options)

    monkeypatch.setattr(module, "PATIENCE", 0.05)
    monkeypatch.setattr(module, "fit_calibrated", slow)
    served = ServedRun(*a_run)
    for _ in range(2):
        with pytest.raises(NotYetError):
            served.predict(served.z[:1], np.array([0]))
    begun.set()
    served._fit._thread.join()
    assert served.predict(np.ones((1, 24), np.float32)) == whole


def test_of_many_labels_a_sample_is_learned(a_run, monkeypatch):
    monkeypatch.setattr("graphcl.serving.run.MOST_LABELLED", 20)
    served = ServedRun(*a_run)
    rows = np.arange(60)
    found = served.predict(np.asarray(served.z), rows)
    assert len(served._learned) == 20
    plain = served._fit.result(1).probabilities(np.asarray(served.z))
    others = np.setdiff1d(rows, served._learned)
    names = ("red", "green", "blue")
    table = np.array([[one["probabilities"][name] for name in names] for one in found])
    np.testing.assert_array_equal(table[others], plain[others].astype(float))


def test_new_nodes_are_the_models(served, a_run, new_node):
    features, near = new_node[1]
    path, graph = a_run
    expected = GraphCL.load(path, device="cpu").embed_new(features, near, graph=graph)
    np.testing.assert_array_equal(served.embed_new(New(features[None], [near]))[0], expected)


def test_neighbours_in_the_graph(served, a_run):
    graph = a_run[1]
    for row, found in enumerate(served.linked(np.arange(60))):
        own = [int(b) for a, b in graph.edge_index().T if a == row]
        assert found.tolist() == [*own, row]


def test_a_run_without_labels_predicts_nothing(tmp_path):
    graph = Graph.from_edge_index([[0, 1], [1, 2]], np.eye(3))
    GraphCL(epochs=1, dim=8, device="cpu").fit(graph).save(tmp_path / "run", graph=graph)
    served = ServedRun(tmp_path / "run", graph)
    assert not served.can_predict
    with pytest.raises(UnknownError, match="no labels"):
        served.predict(served.z[:1])
    with pytest.raises(UnknownError, match="no node has the id 'x'"):
        served.rows(["x"])
    assert served.id(2) == 2


def test_graphs_that_do_not_fit_are_refused(a_run, tmp_path):
    path, graph = a_run
    with pytest.raises(RunError, match="a service is of one"):
        ServedRun(path, GraphCollection((graph,), (), (), name="several"))
    fewer = Graph.from_edge_index([[0], [1]], graph.x[:5])
    with pytest.raises(RunError, match="60 embeddings and 60 nodes for a graph of 5"):
        ServedRun(path, fewer)
