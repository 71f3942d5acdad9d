import json

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import HeteroData

from graphcl import Graph, GraphCL, linear_probe
from graphcl.encoders.layer import Layer, LayeredEncoder, Message, glorot
from graphcl.errors import GraphError, ParameterError, RunError
from graphcl.estimator.fitted import Fitted
from graphcl.runs.nodes import read_nodes
from graphcl.training.checkpoints import Checkpoints, StoppedError
from tests.conftest import configured
from tests.groups import in_processes

FAST = {"dim": 16, "epochs": 3, "batch_nodes": 16, "device": "cpu"}
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")


def library(seed=0, *, papers=40, authors=20):
    """Papers of two classes, authors who write on one of them, topics without features."""
    random = np.random.default_rng(seed)
    y, of_author = random.integers(0, 2, papers), random.integers(0, 2, authors)
    alike = y[None] == of_author[:, None]
    writes = np.argwhere(random.random(alike.shape) < np.where(alike, 0.3, 0.02)).T
    cites = random.integers(0, papers, (2, 60))
    topics = np.stack([np.arange(papers), y + 2 * random.integers(0, 2, papers)])
    x = random.normal(size=(papers, 6)) + np.eye(2, 6)[y]
    split = random.permutation(papers)
    return Graph.from_edges(
        {
            "author": random.normal(size=(authors, 3)),
            "paper": {
                "x": x,
                "y": y,
                "train_mask": split[:15],
                "val_mask": split[15:25],
                "test_mask": split[25:],
                "node_ids": [f"p{i}" for i in range(papers)],
            },
            "topic": 4,
        },
        {
            WRITES: {
                "edge_index": writes,
                "edge_features": random.normal(size=(writes.shape[1], 2)),
            },
            CITES: {"edge_index": cites, "edge_weight": random.random(60) + 0.5},
            ("paper", "on", "topic"): topics,
        },
        name="library",
    )


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_it_trains_embeds_saves_and_loads(tmp_path, mode):
    graph = library()
    model = configured(mode=mode, fan_out=3, **FAST)
    z = model.fit_transform(graph)
    assert {name: rows.shape for name, rows in z.items()} == {
        "author": (20, 16),
        "paper": (40, 16),
        "topic": (4, 16),
    }
    assert all(rows.dtype == np.float32 for rows in z.values())
    assert len(model.history_) == 3
    assert model.mode_.name == mode
    model.save(tmp_path / "run")
    again = GraphCL.load(tmp_path / "run", device="cpu").transform(graph)
    for name, rows in z.items():
        assert np.array_equal(rows, again[name])
    assert linear_probe(z["paper"], graph.nodes["paper"]).nodes == (15, 10, 15)
    assert Fitted.read(tmp_path / "run").schema == model._fitted.schema


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_the_seed_decides_every_bit_and_labels_decide_nothing(mode):
    graph, options = library(), {"mode": mode, "fan_out": 3, **FAST}
    first = configured(seed=1, **options).fit_transform(graph)
    other = {name: {"x": one.x, "num_nodes": one.num_nodes} for name, one in graph.nodes.items()}
    unlabelled = Graph(Graph.from_edges(other, {}).nodes, graph.relations, graph.name)
    second = configured(seed=1, **options).fit_transform(unlabelled)
    third = configured(seed=2, **options).fit_transform(graph)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not np.array_equal(first["paper"], third["paper"])


def test_some_nodes_of_a_type_have_the_rows_of_all():
    graph = library()
    model = GraphCL(**FAST).fit(graph)
    z = model.transform(graph)
    np.testing.assert_allclose(model.transform(graph, node_type="author"), z["author"], rtol=1e-5)
    some = model.transform(graph, node_type="paper", nodes=["p7", "p3", "p7"])
    np.testing.assert_allclose(some, z["paper"][[7, 3, 7]], rtol=1e-4, atol=1e-6)
    with pytest.raises(GraphError, match="of which type are these nodes"):
        model.transform(graph, nodes=[1])
    with pytest.raises(GraphError, match=r"no type 'papers'.*did you mean 'paper'"):
        model.transform(graph, node_type="papers")


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_a_training_that_stopped_goes_on_to_the_same_bits(tmp_path, mode):
    graph, options = library(), {"mode": mode, "fan_out": 2, **FAST}
    expected = configured(**options).fit_transform(graph)
    steps = iter(range(100))
    stopping = Checkpoints(tmp_path / "c", stop=lambda: next(steps) == 5)
    with pytest.raises(StoppedError):
        configured(**options).fit(graph, checkpoints=stopping)
    found = configured(**options).fit(graph, checkpoints=tmp_path / "c", resume=True)
    assert all(
        np.array_equal(rows, expected[name]) for name, rows in found.transform(graph).items()
    )
    with pytest.raises(RunError, match="is of another training"):
        configured(**options).fit(library(1), checkpoints=tmp_path / "c", resume=True)


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_from_a_store_it_has_the_bits_of_memory(tmp_path, mode):
    graph, options = library(), {"mode": mode, "fan_out": 2, **FAST}
    graph.save(tmp_path / "store")
    expected = configured(**options).fit_transform(graph)
    found = configured(**options).fit_transform(Graph.open(tmp_path / "store"))
    assert all(np.array_equal(rows, expected[name]) for name, rows in found.items())


def test_hetero_data_goes_in_as_it_is():
    data = HeteroData()
    data["a"].x, data["b"].num_nodes = torch.rand(30, 4), 10
    data["a", "to", "b"].edge_index = torch.stack([torch.arange(30), torch.arange(30) % 10])
    z = GraphCL(**FAST).fit_transform(data)
    assert {name: len(rows) for name, rows in z.items()} == {"a": 30, "b": 10}


def test_unseen_graphs_may_lack_types_and_relations_and_have_no_others():
    graph, unseen = library(), library(5, papers=12, authors=7)
    model = GraphCL(**FAST).fit(graph)
    assert model.transform(unseen)["topic"].shape == (4, 16)
    cites = unseen.relations[CITES]
    assert len(model.transform(Graph({"paper": unseen.nodes["paper"]}, {CITES: cites}))) == 1
    other = Graph.from_edges({"paper": np.ones((3, 5))}, {})
    with pytest.raises(GraphError, match="type 'paper' has 5 features; the model was trained on 6"):
        model.transform(other)
    with pytest.raises(GraphError, match="the model knows no type 'journal'"):
        model.transform(Graph.from_edges({"journal": 2}, {}))
    likes = {("paper", "likes", "paper"): [[0], [1]]}
    with pytest.raises(GraphError, match="knows no relation paper:likes:paper"):
        model.transform(Graph.from_edges({"paper": np.ones((3, 6))}, likes))
    with pytest.raises(GraphError, match="type 'topic' has features; in training it had none"):
        model.transform(Graph.from_edges({"topic": np.ones((3, 6))}, {}))


def test_plain_and_typed_models_say_what_they_are(graph):
    with pytest.raises(GraphError, match="is a typed graph; the model was trained on a plain one"):
        GraphCL(**FAST).fit(graph).transform(library())
    model = GraphCL(**FAST).fit(library())
    with pytest.raises(GraphError, match="the model knows no type 'node'"):
        model.transform(graph)


def test_exceptions_and_contrast_are_checked_against_the_graph(capsys):
    rates = "writes.edge_drop=0.9, cites.fan_out=1, paper.feature_drop=0"
    model = configured(overrides=rates, contrast="paper", verbose=True, mode="sampled", **FAST)
    assert model.fit(library()).recipe_.overrides == rates
    said = capsys.readouterr().err
    assert "nodes of type 'topic' have no features: they get the means of their neighbours'" in said
    with pytest.raises(GraphError, match=r"no relation 'wrties'.*did you mean 'writes'"):
        configured(overrides="wrties.edge_drop=0.1", **FAST).fit(library())
    with pytest.raises(ParameterError, match=r"edge_drop must be in \[0, 1\); got 1.5"):
        configured(overrides="writes.edge_drop=1.5", **FAST).fit(library())
    with pytest.raises(ParameterError, match=r"overrides must be like writes.edge_drop=0.1"):
        configured(overrides="writes=0.1", **FAST).fit(library())
    with pytest.raises(ParameterError, match="contrast: must be 'each', 'all' or names of types"):
        configured(contrast="papers", **FAST).fit(library())


def test_what_typed_graphs_cannot_have_is_refused():
    with pytest.raises(ParameterError, match="encoder must be 'residual', once per relation"):
        GraphCL("cora", **FAST).fit(library())
    with pytest.raises(ParameterError, match="inductive must be false on a typed graph"):
        configured(inductive=True, **FAST).fit(library())
    with pytest.raises(GraphError, match="no relation has edges"):
        GraphCL(**FAST).fit(Graph.from_edges({"a": np.ones((3, 2))}, {}))


def test_a_damaged_schema_is_said(tmp_path):
    GraphCL(**FAST).fit(library()).save(tmp_path / "run")
    path = tmp_path / "run" / "schema.json"
    whole = json.loads(path.read_text())
    for broken in (
        {},
        whole | {"types": []},
        whole | {"types": [{"name": "a", "num_features": -1}]},
        whole | {"relations": [{"source": 1}]},
        whole | {"types": [one | {"num_features": 1 << 40} for one in whole["types"]]},
        whole | {"types": [one | {"num_features": 7} for one in whole["types"]]},
    ):
        path.write_text(json.dumps(broken))
        with pytest.raises(RunError, match="schema"):
            GraphCL.load(tmp_path / "run")


TOGETHER = (
    {"mode": "full", "contrast": "each"},
    {"mode": "sampled", "contrast": "each"},
    {"mode": "sampled", "contrast": "all", "sample_with_replacement": False, "fan_out": 3},
)


def member(_share, _folder):
    """One of two processes, which train together."""
    found = []
    for options in TOGETHER:
        model = configured(**options, **FAST)
        z = model.fit_transform(library())
        found.append({**z, "losses": [one.loss for one in model.history_]})
    return found


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    return in_processes(2, member, tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("number", range(len(TOGETHER)))
def test_two_processes_train_the_encoder_that_one_would(together, number):
    alone = configured(**TOGETHER[number], **FAST).fit(library())
    losses = [one.loss for one in alone.history_]
    for each in together:
        found = each[number]
        np.testing.assert_allclose(found["losses"], losses, rtol=1e-5)
        for name, rows in alone.transform(library()).items():
            np.testing.assert_allclose(found[name], rows, rtol=1e-2, atol=1e-3)


def test_a_model_is_saved_with_the_embeddings_of_all_types(tmp_path):
    graph = library()
    model = GraphCL(**FAST).fit(graph)
    model.save(tmp_path / "run", graph=graph)
    model.save(tmp_path / "same", graph=graph.to_pyg())
    for number, (name, rows) in enumerate(model.transform(graph).items()):
        for run in ("run", "same"):
            kept = np.load(tmp_path / run / "types" / f"{number}-{name}" / "embeddings.npy")
            np.testing.assert_array_equal(kept, rows)
    assert read_nodes(tmp_path / "run", "paper").ids[3] == "p3"
    again = GraphCL.load(tmp_path / "run", device="cpu").transform(graph, node_type="paper")
    np.testing.assert_array_equal(again, model.transform(graph, node_type="paper"))


class TwoMeans(LayeredEncoder):
    """An encoder of a caller's own: each type has one matrix for all that it receives."""

    def __init__(self, schema, *, dim, layers, generator):
        super().__init__()
        self.schema, self.layers = schema, layers
        widths = [*(one.num_features for one in schema.types)]
        self.inputs = nn.ParameterList(torch.empty(width, dim) for width in widths)
        self.own = nn.ParameterList(torch.empty(dim, dim) for _ in range(layers))
        self.pooled = nn.ParameterList(torch.empty(dim, dim) for _ in range(layers))
        glorot(self, generator)

    def input_map(self, node_type):
        return self.inputs[[one.name for one in self.schema.types].index(node_type)]

    def layer_specs(self):
        return tuple(
            {
                one.name: Layer(
                    tuple(Message(self.pooled[level], way) for way in self.schema.into(one.name)),
                    self.own[level],
                )
                for one in self.schema.types
            }
            for level in range(self.layers)
        )


@pytest.mark.parametrize("mode", ["full", "sampled"])
def test_an_encoder_of_ones_own_trains_and_embeds(tmp_path, mode):
    graph = library()
    model = configured(encoder=TwoMeans, mode=mode, fan_out=3, **FAST)
    z = model.fit(graph).transform(graph)
    assert {name: rows.shape for name, rows in z.items()} == {
        name: (one.num_nodes, FAST["dim"]) for name, one in graph.nodes.items()
    }
    model.save(tmp_path / "run")
    again = GraphCL.load(tmp_path / "run", device="cpu", encoder=TwoMeans).transform(graph)
    for name, rows in z.items():
        assert np.array_equal(rows, again[name])


def test_an_encoder_for_plain_graphs_says_which_types_it_lacks():
    class Plain(LayeredEncoder):
        def __init__(self, schema, *, dim, layers, generator):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, dim))

        def layer_specs(self):
            return (Layer(self.weight),)

    with pytest.raises(ParameterError, match="stated for the types node; the graph's are author"):
        GraphCL(encoder=Plain, **FAST).fit(library())
