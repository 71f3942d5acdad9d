import pytest
import torch

from graphcl.errors import TrainingError
from graphcl.research.systems.supervised import GAT, GCN

CPU = torch.device("cpu")


def test_it_learns_the_classes(graph):
    predicted = GCN(epochs=40, learning_rate=0.05).fit_predict(graph, seed=0, device=CPU)
    assert (predicted == graph.y)[graph.test_mask].mean() > 0.7
    assert (predicted == graph.y)[graph.train_mask].mean() > 0.9


def test_epochs_are_counted(graph):
    seen = []
    GCN(epochs=3).fit_predict(graph, seed=0, device=CPU, on_epoch=lambda *c: seen.append(c))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_it_learns_the_classes_and_stops_by_itself(graph):
    epochs = []
    predicted = GAT(hidden=4, heads=2, learning_rate=0.05, patience=10).fit_predict(
        graph, seed=0, device=CPU, on_epoch=lambda done, _: epochs.append(done)
    )
    assert (predicted == graph.y)[graph.test_mask].mean() > 0.7
    assert 10 < epochs[-1] < 2000


def test_several_output_heads_are_averaged(graph):
    predicted = GAT(output_heads=3, epochs=3).fit_predict(graph, seed=0, device=CPU)
    assert predicted.max() < 3


def test_a_training_that_runs_away_says_so(graph):
    with pytest.raises(TrainingError, match="gat: the result is not finite"):
        GAT(learning_rate=1e30, epochs=3).fit_predict(graph, seed=0, device=CPU)
