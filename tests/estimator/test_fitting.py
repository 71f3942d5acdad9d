import numpy as np
import pytest
import torch

from graphcl import GraphCL
from graphcl.errors import ParameterError
from graphcl.estimator import fitting
from graphcl.estimator.fitting import retrain
from graphcl.estimator.inference import embed_fitted
from tests.conftest import configured, random_graph

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
    z = configured(**SHORT, mode=mode).fit_transform(graph)
    assert z.shape == (graph.num_nodes, 16)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(sizes(z), 1, rtol=1e-4)


def test_a_run_keeps_them(graph, tmp_path):
    model = configured(**SHORT).fit(graph)
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
        configured(**SHORT, inductive=True, feature_scaling="none").fit(one)
        for one in (graph, graph.replace(x=x))
    )
    beside, other = first.encoder_.beside, second.encoder_.beside
    assert (beside.shift == other.shift).all()
    assert (beside.scale == other.scale).all()


def test_of_a_large_graph_some_ranges_are_enough(graph, monkeypatch):
    whole = configured(**SHORT).fit(graph).encoder_.beside
    monkeypatch.setattr(fitting, "WHOLE", 10)
    monkeypatch.setattr(fitting, "NODES", 4)
    monkeypatch.setattr(fitting, "RANGES", graph.num_nodes // 4)  # all of them, in order
    ranges = configured(**SHORT).fit(graph).encoder_.beside
    assert graph.num_nodes % 4 == 0
    np.testing.assert_allclose(ranges.scale, whole.scale, rtol=1e-5)
    np.testing.assert_allclose(ranges.shift, whole.shift, atol=1e-5)


def test_several_graphs(monkeypatch):
    graphs = [random_graph(seed=seed) for seed in range(3)]
    monkeypatch.setattr(fitting, "ENOUGH", graphs[0].num_nodes + 1)
    model = configured(**SHORT).fit(graphs)
    z = np.concatenate([model.transform(one) for one in graphs[:2]])
    np.testing.assert_allclose(sizes(z), 1, rtol=1e-4)


def test_one_result_is_left_alone(graph):
    model = GraphCL("ppi", dim=8, epochs=1).fit(graph)
    assert model.encoder_.beside is None


CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def fitted():
    return GraphCL(dim=12, epochs=20, device="cpu").fit(random_graph())._fitted


def weights(one):
    return {name: value.clone() for name, value in one.encoder.state_dict().items()}


def test_it_goes_on_from_the_weights(fitted):
    before = weights(fitted)
    grown = random_graph(1, num_nodes=80)
    after = retrain(fitted, grown, epochs=1, device=CPU)
    moved = [
        float((after.encoder.state_dict()[name] - one).abs().max()) for name, one in before.items()
    ]
    steps = 0.1  # Adam moves a weight by about the learning rate in a step
    assert max(moved) > 0
    trained = [
        float((one.data - before[name]).abs().max())
        for name, one in after.encoder.named_parameters()
    ]
    assert max(trained) < steps
    assert all(
        torch.equal(value, before[name]) for name, value in fitted.encoder.state_dict().items()
    )
    assert [one.epoch for one in after.history] == list(range(1, len(fitted.history) + 2))
    assert after.seconds > fitted.seconds
    assert after.scaling is fitted.scaling
    assert len(fitted.history) == 20


def test_a_tenth_of_the_epochs_unless_told(fitted):
    assert len(retrain(fitted, random_graph(), device=CPU).history) == 22
    with pytest.raises(ParameterError, match="epochs must be at least 1"):
        retrain(fitted, random_graph(), epochs=0, device=CPU)


def test_the_same_again_gives_the_same_bits_and_labels_do_not_matter(fitted):
    graph = random_graph(2)
    other = graph.replace(y=np.roll(graph.y, 7))
    both = [weights(retrain(fitted, one, epochs=2, device=CPU)) for one in (graph, other)]
    assert all(torch.equal(value, both[1][name]) for name, value in both[0].items())


def test_other_views_are_drawn_than_before(fitted):
    graph = random_graph()
    once = retrain(fitted, graph, epochs=1, device=CPU)
    twice = retrain(once, graph, epochs=1, device=CPU)
    assert twice.history[-1].epoch == 22
    assert not np.array_equal(
        embed_fitted(once, graph, device=CPU)["node"],
        embed_fitted(twice, graph, device=CPU)["node"],
    )
