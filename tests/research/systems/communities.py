"""Small graphs with communities, for tests of systems that train on some and embed others."""

import numpy as np
import torch

from graphcl.graphs.collection import GraphCollection
from graphcl.graphs.graph import Graph
from tests.conftest import random_graph

CPU = torch.device("cpu")


def communities(splits=(4, 2, 2)) -> GraphCollection:
    """Graphs of three communities each; the class of a node is its community."""
    graphs = [
        random_graph(number, num_nodes=50 + number).replace(
            train_mask=None,
            val_mask=None,
            test_mask=None,
        )
        for number in range(sum(splits))
    ]
    first, second = splits[0], splits[0] + splits[1]
    return GraphCollection(graphs[:first], graphs[first:second], graphs[second:], name="villages")


def with_other_unseen(collection: GraphCollection, *, val: bool) -> GraphCollection:
    """The same training graphs; the others keep their sizes and change in all else."""
    return GraphCollection(
        collection.train,
        tuple(map(changed, collection.val)) if val else collection.val,
        tuple(map(changed, collection.test)),
        name=collection.name,
    )


def changed(graph: Graph) -> Graph:
    random = np.random.default_rng(7)
    order = random.permutation(graph.num_nodes)
    x = random.normal(size=graph.x.shape)
    return Graph.from_edge_index(order[graph.edge_index()], x, graph.y[order], name=graph.name)


def with_other_unseen_nodes(graph: Graph) -> Graph:
    """The same training nodes and edges among them; the other nodes change in all else."""
    random = np.random.default_rng(7)
    seen = graph.train_mask
    edges = graph.edge_index()
    inside = edges[:, seen[edges].all(0)]
    outside = random.integers(0, graph.num_nodes, (2, 200))
    outside = outside[:, ~seen[outside].all(0)]
    x = np.where(seen[:, None], graph.x, random.normal(size=graph.x.shape))
    y = np.where(seen, graph.y, random.integers(0, 3, graph.num_nodes))
    masks = {name: getattr(graph, name) for name in ("train_mask", "val_mask", "test_mask")}
    return Graph.from_edge_index(np.concatenate([inside, outside], 1), x, y, **masks)


def unseen_accuracy(predicted: np.ndarray, collection: GraphCollection) -> float:
    unseen = collection.split_nodes[2]
    return float((predicted == collection.y)[-unseen:].mean())


def weights_of(monkeypatch, module, name):
    """Keeps the module that `module.name` builds, to look at after training."""
    built = []
    build = getattr(module, name)

    def spy(*arguments, **keywords):
        built.append(build(*arguments, **keywords))
        return built[-1]

    monkeypatch.setattr(module, name, spy)
    return built


def same_weights(first, second) -> bool:
    pairs = list(zip(first.parameters(), second.parameters(), strict=True))
    return all(torch.equal(a, b) for a, b in pairs)
