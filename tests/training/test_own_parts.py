"""Parts of the user's own: what they get, what they may do, and what is said of their faults."""

import re

import numpy as np
import pytest
import scipy.sparse
import torch
from torch import nn
from torch_geometric.nn import GCNConv

import graphcl
from graphcl import Graph, GraphCL
from graphcl.cli.main import run as run_command
from graphcl.encoders import Layer, LayeredEncoder, glorot
from graphcl.errors import PartError
from graphcl.kernels.adjacency import mean_pool
from graphcl.registry import LOSSES
from tests.estimator.test_typed import TwoMeans, library

SMALL = {"dim": 4, "epochs": 2, "device": "cpu", "verbose": False}


class Convolutions(nn.Module):
    """Layers of PyG, whose constructors ignore the generator, and dropout."""

    def __init__(self, num_features, *, dim, layers, generator):
        super().__init__()
        self.first = GCNConv(num_features, dim)
        self.second = GCNConv(dim, dim)
        self.largest = float(self.first.lin.weight.max())  # not possible without memory

    def forward(self, x, adjacency):
        dense = x if isinstance(x, torch.Tensor) else x.to_dense()
        h = self.first(dense, adjacency.edge_index()).relu()
        h = nn.functional.dropout(h, 0.5, training=self.training)
        return self.second(h, adjacency.edge_index())


def test_the_same_seed_gives_an_encoder_of_pyg_the_same_results(graph):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    models = [GraphCL(encoder=Convolutions, seed=seed, **SMALL) for seed in (0, 0, 1)]
    found = [model.fit_transform(graph) for model in models]
    np.testing.assert_array_equal(found[0], found[1])
    assert np.abs(found[0] - found[2]).max() > 1e-3
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_of_an_own_encoder_answers_in_python(graph, tmp_path):
    model = GraphCL(encoder=Convolutions, **SMALL).fit(graph)
    model.save(tmp_path / "run", graph=graph)
    run = graphcl.Run(tmp_path / "run", graph=graph, encoder=Convolutions)
    np.testing.assert_array_equal(run.model.transform(graph), run.embeddings)


class Watching(nn.Module):
    """Keeps how many nodes it was called with."""

    def __init__(self, num_features, *, dim, layers, generator):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_features, dim))
        self.norm = nn.BatchNorm1d(dim)
        glorot(self, generator)
        self.sizes = []

    def forward(self, x, adjacency):
        self.sizes.append((x.shape[0], adjacency.num_nodes, self.training))
        return self.norm(mean_pool(x @ self.weight, adjacency))


class Joining(Watching):
    joins_views = True


class Stated(LayeredEncoder):
    def __init__(self, num_features, *, dim, layers, generator, norm=nn.BatchNorm1d):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_features, dim))
        self.norm = norm(dim)
        glorot(self, generator)

    def layer_specs(self):
        return (Layer(self.weight, normalisation=self.norm, activation=None),)


def test_an_encoder_gets_each_view_as_a_graph_of_its_own(graph):
    model = GraphCL(encoder=Watching, **SMALL).fit(graph)
    assert {size for *size, training in map(list, model.encoder_.sizes) for size in size} == {60}
    model = GraphCL(encoder=Joining, **SMALL).fit(graph)
    assert {size for size, _, training in model.encoder_.sizes if training} == {120}


@pytest.mark.parametrize(("norm", "calls"), [(nn.BatchNorm1d, 2), (nn.LayerNorm, 1)])
def test_stated_layers_that_mix_rows_get_two_graphs(graph, norm, calls):
    counted = []

    class Counting(norm):
        def forward(self, h):
            counted.append(len(h))
            return super().forward(h)

    def factory(num_features, **how):
        return Stated(num_features, **how, norm=Counting)

    GraphCL("cora", encoder=factory, mode="full", **SMALL | {"epochs": 1}).fit(graph)
    assert counted[:calls] == [120 // calls] * calls


def writes_everything(x, adjacency, generator):
    values = x if isinstance(x, torch.Tensor) else x.values
    values.add_(1)
    adjacency.weight.mul_(2)
    return x, adjacency


@pytest.mark.parametrize("kind", ["dense", "sparse", "store"])
def test_a_perturbation_that_writes_to_its_input_does_not_change_the_graph(graph, tmp_path, kind):
    if kind == "sparse":
        graph = graph.replace(x=scipy.sparse.csr_array(np.maximum(graph.x, 0)))
    if kind == "store":
        graph.save(tmp_path / "store")
        graph = graphcl.open_graph(tmp_path / "store")
    x = graph.x.copy()
    options = SMALL | {"feature_scaling": "none", "epochs": 4}
    weights = []
    for perturbation in (writes_everything, lambda x, a, g: (x + 1, a.with_weight(2 * a.weight))):
        if kind == "sparse" and weights:
            break
        model = GraphCL(perturbation=perturbation, **options).fit(graph)
        weights.append(model.transform(graph))
    difference = graph.x - x
    assert not (difference.nnz if kind == "sparse" else difference.any())
    if len(weights) == 2:  # each view began with the graph as it is
        np.testing.assert_allclose(weights[0], weights[1], atol=1e-6)


class NoWeights(nn.Module):
    def forward(self, x, adjacency):
        return x


class Simple(nn.Module):
    """A linear encoder that returns what `change` makes of its result."""

    def __init__(self, num_features, dim, change):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_features, dim))
        self.change = change

    def forward(self, x, adjacency):
        return self.change(x @ self.weight)


def simple(change):
    return Simple(12, 4, change)


FAULTS = {
    "fewer rows": ("perturbation", lambda x, a, _: (x[1:], a), r"x of the shape \[60, 12\]; got"),
    "columns": ("perturbation", lambda x, a, _: (x[:, 1:], a), r"got \[60, 11\]"),
    "one value": ("perturbation", lambda x, a, _: x, r"must return \(x, adjacency\); got a tensor"),
    "nothing": ("perturbation", lambda x, a, _: None, "got an object of type NoneType"),
    "an array": ("perturbation", lambda x, a, _: (x.numpy(), a), "got an object of type ndarray"),
    "float64": ("perturbation", lambda x, a, _: (x.double(), a), "of torch.float32 on cpu; got"),
    "nan": ("perturbation", lambda x, a, _: (x / 0, a), "not finite, in x"),
    "no graph": ("perturbation", lambda x, a, _: (x, a.indices), "must return adjacency as it was"),
    "weights": (
        "perturbation",
        lambda x, a, _: (x, a.with_weight(a.weight[1:])),
        "a weight for each of its",
    ),
    "negative": ("perturbation", lambda x, a, _: (x, a.with_weight(-a.weight)), "negative weight"),
    "detached": ("loss", lambda h_1, h_2: h_1.detach().mean(), "without a gradient"),
    "rows": ("loss", lambda h_1, h_2: (h_1 - h_2).mean(1), r"a scalar tensor; got a tensor \[60\]"),
    "item": ("loss", lambda h_1, h_2: h_1.mean().item(), "scalar tensor; got an object of type f"),
    "nan loss": ("loss", lambda h_1, h_2: h_1.mean() / 0, "not finite, in the loss"),
    "elsewhere": (
        "loss",
        lambda h_1, h_2: torch.ones((), requires_grad=True) * 2,
        "gave no weight of the encoder a gradient",
    ),
    "no weights": ("encoder", NoWeights(), "has no parameters to train"),
    "pair": ("encoder", simple(lambda h: (h, h)), "returned 0 rows|tensor .nodes, dim.; got a tup"),
    "cut off": ("encoder", simple(lambda h: h.detach()), "do not depend on its parameters"),
    "nan rows": ("encoder", simple(lambda h: h / 0), "not finite, in embeddings"),
    "flat": ("encoder", simple(lambda h: h.mean(1)), r"tensor \[nodes, dim\]"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_names_the_part_and_what_is_wrong(graph, case):
    kind, part, expected = FAULTS[case]
    with pytest.raises(PartError, match=expected) as caught:
        GraphCL(**{kind: part}, **SMALL).fit(graph)
    assert kind in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_fault_on_the_command_line_has_exit_code_2(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LOSSES, "_parts", {})
    LOSSES.register("still", lambda *, temperature, precision: FAULTS["detached"][1])
    command = ["train", "cora", "--set", "loss=still", "--set", "epochs=1", "--out", "run"]
    assert run_command([*command, "--set", "dim=8"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.match(r"graphcl: your loss .* returned a number without a gradient", line)


def thin(x, adjacency, generator):
    """A view without some edges, of a plain graph or of one with types."""
    if isinstance(x, dict):
        return x, {key: thin(None, edges, generator)[1] for key, edges in adjacency.items()}
    keep = torch.rand(adjacency.num_edges, generator=generator, device=generator.device) >= 0.2
    if adjacency.edge_ids is not None:
        keep = keep[adjacency.edge_ids]
    return x, adjacency.with_weight(adjacency.weight * keep)


def test_own_parts_train_on_a_directed_graph():
    """It is a graph with one type and one relation: parts get dictionaries, and a schema."""
    draw = np.random.default_rng(0)
    edges = np.unique(draw.integers(0, 40, (2, 150)), axis=1)
    edges = edges[:, edges[0] != edges[1]]
    graph = Graph.from_directed(edges, draw.normal(size=(40, 5)))
    seen = []

    def watch(x, relations, generator):
        ((relation, adjacency),) = relations.items()
        seen.append((x["node"].shape, relation, adjacency.num_edges, adjacency.edge_ids))
        return thin(x, relations, generator)

    model = GraphCL(encoder=TwoMeans, perturbation=watch, layers=2, **SMALL).fit(graph)
    (relation,) = graph.relations
    assert seen == [((40, 5), relation, edges.shape[1], None)] * 2 * SMALL["epochs"]
    assert np.isfinite(model.transform(graph)["node"]).all()


def test_an_own_perturbation_trains_on_a_graph_with_types():
    graph = library()
    seen = []

    def watch(x, adjacency, generator):
        seen.append((set(x), set(adjacency)))
        for table in x.values():
            table.mul_(0)  # the next view has the features as they are
        return thin(x, adjacency, generator)

    before = {name: nodes.x.copy() for name, nodes in graph.nodes.items() if nodes.x is not None}
    GraphCL(perturbation=watch, feature_scaling="none", **SMALL).fit(graph)
    assert seen[0] == (set(graph.nodes), set(graph.relations))
    for name, x in before.items():
        np.testing.assert_array_equal(graph.nodes[name].x, x)


def test_a_view_of_a_typed_graph_that_lacks_a_type_is_refused():
    with pytest.raises(PartError, match="must return x as a dictionary with the keys that it was"):
        GraphCL(perturbation=lambda x, a, _: ({}, a), **SMALL).fit(library())
