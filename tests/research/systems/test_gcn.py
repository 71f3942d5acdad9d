import torch

from graphcl.research.systems.gcn import GCN

CPU = torch.device("cpu")


def test_it_learns_the_classes(graph):
    predicted = GCN(epochs=40, learning_rate=0.05).fit_predict(graph, seed=0, device=CPU)
    assert (predicted == graph.y)[graph.test_mask].mean() > 0.7
    assert (predicted == graph.y)[graph.train_mask].mean() > 0.9


def test_epochs_are_counted(graph):
    seen = []
    GCN(epochs=3).fit_predict(graph, seed=0, device=CPU, on_epoch=lambda *c: seen.append(c))
    assert seen == [(1, 3), (2, 3), (3, 3)]
