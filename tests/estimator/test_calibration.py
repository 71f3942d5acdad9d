import numpy as np
import pytest

from graphcl import GraphCL
from graphcl.estimator import calibration
from tests.conftest import random_graph

SHORT = {
    "encoder": "residual",
    "normalisation": "layer",
    "side_by_side": True,
    "own_features": 0.5,
    "dim": 16,
    "layers": 2,
    "epochs": 2,
    "batch_nodes": 16,
    "fan_out": 3,
}
PARTS = (slice(0, 8), slice(8, 12), slice(12, 16))


def sizes(z):
    return [float(np.square(z[:, columns]).sum(1).mean()) for columns in PARTS]


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_parts_of_embeddings_have_one_size(graph, mode):
    z = GraphCL(**SHORT, mode=mode).fit_transform(graph)
    assert z.shape == (graph.num_nodes, 16)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(sizes(z), 1, rtol=1e-4)


def test_a_run_keeps_them(graph, tmp_path):
    model = GraphCL(**SHORT).fit(graph)
    model.save(tmp_path / "run")
    other = random_graph(seed=5)  # its own figures would differ
    again = GraphCL.load(tmp_path / "run")
    np.testing.assert_array_equal(again.transform(other), model.transform(other))
    assert max(abs(size - 1) for size in sizes(again.transform(other))) > 1e-3
    assert list(again.get_feature_names_out())[-1] == "graphcl15"


def test_no_other_row_counts_in_inductive_training(graph):
    mask = np.arange(graph.num_nodes) % 2 == 0
    graph = graph.replace(train_mask=mask)
    x = np.array(graph.x)
    x[~mask] *= 100
    first, second = (
        GraphCL(**SHORT, inductive=True, feature_scaling="none").fit(one)
        for one in (graph, graph.replace(x=x))
    )
    beside, other = first.encoder_.beside, second.encoder_.beside
    assert (beside.shift == other.shift).all()
    assert (beside.scale == other.scale).all()


def test_of_a_large_graph_some_ranges_are_enough(graph, monkeypatch):
    whole = GraphCL(**SHORT).fit(graph).encoder_.beside
    monkeypatch.setattr(calibration, "WHOLE", 10)
    monkeypatch.setattr(calibration, "NODES", 4)
    monkeypatch.setattr(calibration, "RANGES", graph.num_nodes // 4)  # all of them, in order
    ranges = GraphCL(**SHORT).fit(graph).encoder_.beside
    assert graph.num_nodes % 4 == 0
    np.testing.assert_allclose(ranges.scale, whole.scale, rtol=1e-5)
    np.testing.assert_allclose(ranges.shift, whole.shift, atol=1e-5)


def test_several_graphs(monkeypatch):
    graphs = [random_graph(seed=seed) for seed in range(3)]
    monkeypatch.setattr(calibration, "ENOUGH", graphs[0].num_nodes + 1)
    model = GraphCL(**SHORT).fit(graphs)
    z = np.concatenate([model.transform(one) for one in graphs[:2]])
    np.testing.assert_allclose(sizes(z), 1, rtol=1e-4)


def test_one_result_is_left_alone(graph):
    model = GraphCL("ppi", dim=8, epochs=1).fit(graph)
    assert model.encoder_.beside is None
