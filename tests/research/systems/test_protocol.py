"""What holds of every baseline that takes one graph."""

from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
import torch

from graphcl.errors import GraphError, ParameterError
from graphcl.research.systems import BASELINES
from graphcl.research.systems.protocol import Baseline, is_unsupervised
from graphcl.research.systems.untrained import RawFeatures

CPU = torch.device("cpu")
QUICK = {
    "raw": {},
    "propagation": {},
    "random-encoder": {"dim": 16},
    "label-propagation": {},
    "deepwalk": {"dim": 8, "walks": 2, "length": 5},
    "deepwalk-features": {"dim": 8, "walks": 2, "length": 5},
    "ep-b": {"dim": 8, "epochs": 5},
    "dgi": {"dim": 8, "epochs": 5},
    "gcn": {"epochs": 5},
    "gat": {"epochs": 5},
    "grace": {"dim": 8, "epochs": 3},
    "bgrl": {"hidden": 8, "dim": 8, "predictor": 8, "epochs": 3},
    "cca-ssg": {"dim": 8, "epochs": 3},
    "graphmae": {"dim": 8, "epochs": 3},
}
SUPERVISED = ("label-propagation", "gcn", "gat")


def quick(name):
    return BASELINES[name].method("", **QUICK[name])


def outcome(name, graph, seed=0):
    method = quick(name)
    run = method.embed if is_unsupervised(method) else method.fit_predict
    return run(graph, seed=seed, device=CPU)


@pytest.mark.parametrize("name", QUICK)
def test_a_seed_decides_every_bit_and_global_streams_are_left_alone(name, graph):
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first, second, other = (outcome(name, graph, seed) for seed in (3, 3, 4))
    assert np.array_equal(first, second)
    assert torch.equal(torch.random.get_rng_state(), state)
    if name not in SUPERVISED:
        assert np.array_equal(first, other) == BASELINES[name].deterministic


@pytest.mark.parametrize("name", sorted(set(QUICK) - set(SUPERVISED)))
def test_an_unsupervised_one_never_reads_labels(name, graph):
    z = outcome(name, graph)
    assert z.dtype == np.float32
    assert z.shape[0] == graph.num_nodes
    blind = replace(graph, y=None, train_mask=None, val_mask=None, test_mask=None)
    assert np.array_equal(outcome(name, blind), z)


@pytest.mark.parametrize("name", SUPERVISED)
def test_a_supervised_one_never_reads_test_labels(name, graph):
    predicted = outcome(name, graph)
    assert predicted.dtype == np.int64
    assert predicted.shape == (graph.num_nodes,)
    assert set(predicted) <= {0, 1, 2}
    wrong = np.where(graph.test_mask, (graph.y + 1) % 3, graph.y)
    assert np.array_equal(outcome(name, replace(graph, y=wrong)), predicted)


@pytest.mark.parametrize("name", SUPERVISED)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, "has none"),
        ({"train_mask": None}, "masks; validation and test nodes are given, train nodes are not"),
        (dict.fromkeys(("train_mask", "val_mask", "test_mask")), "and test masks; it has none"),
        ({"y": np.zeros((60, 2), dtype=np.int64)}, "has several labels"),
        ({"y": np.full(60, -1)}, "no training node of random has a label"),
    ],
)
def test_a_supervised_one_says_what_it_lacks(name, graph, changes, message):
    with pytest.raises(GraphError, match=f"^{name}: .*{message}"):
        outcome(name, replace(graph, **changes))


INDUCTIVE = {
    "dgi-inductive": {"dim": 8, "epochs": 1},
    "graphsage-gcn": {"dim": 8, "epochs": 1},
    "graphsage-mean": {"dim": 8, "epochs": 1},
    "graphsage-lstm": {"dim": 8, "epochs": 1},
    "graphsage-pool": {"dim": 8, "epochs": 1},
    "fastgcn": {"epochs": 1},
    "gaan": {"dim": 8, "epochs": 1},
}


@pytest.mark.parametrize("name", BASELINES)
def test_it_is_known_whether_weights_matter(name, graph):
    edges = graph.edge_index()
    weights = np.random.default_rng(0).uniform(0.01, 100, graph.num_edges).astype("float32")
    ends = edges[:, edges[0] < edges[1]]
    weighted = replace(
        graph, edge_weight=graph.from_edge_index(ends, graph.x, edge_weight=weights).edge_weight
    )
    settings = QUICK | INDUCTIVE | {"gcn": {"epochs": 60}}  # enough to tell nodes apart
    method = BASELINES[name].method("", **settings[name])
    run = method.embed if is_unsupervised(method) else method.fit_predict
    plain, other = (run(one, seed=0, device=CPU) for one in (graph, weighted))
    assert np.array_equal(plain, other) != BASELINES[name].weighted


ONE_GRAPH = ("label-propagation", "deepwalk", "ep-b", "dgi", "gcn", "gat", "grace", "bgrl")


@pytest.mark.parametrize("name", [*ONE_GRAPH, "cca-ssg", "graphmae"])
def test_one_that_takes_one_graph_refuses_several(name, collection):
    with pytest.raises(GraphError, match=f"{name}: takes one graph; tissues has 6"):
        outcome(name, collection)


@pytest.mark.parametrize("name", ["raw", "propagation", "random-encoder"])
def test_others_take_several(name, collection):
    z = outcome(name, collection)
    separately = [outcome(name, one) for one in collection.graphs]
    np.testing.assert_allclose(z, np.concatenate(separately), rtol=1e-6)


@pytest.mark.parametrize("baseline", BASELINES.values(), ids=BASELINES)
def test_settings_build(baseline):
    for dataset, changed in {"": {}, **baseline.settings}.items():
        method = baseline.method(dataset)
        assert {name: getattr(method, name) for name in changed} == changed
    assert BASELINES[baseline.name] is baseline


@pytest.mark.parametrize("name", sorted(set(QUICK) - {"raw"}))
def test_text_is_read_as_the_fields_type(name):
    method = BASELINES[name].method("cora")
    values = {one.name: getattr(method, one.name) for one in fields(method)}
    text = {key: str(value) for key, value in values.items()}
    assert BASELINES[name].method("", **text) == method


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("dgi", {"patiance": "3"}, "dgi: unknown field 'patiance'; did you mean 'patience'?"),
        ("gcn", {"zzz": "3"}, "gcn: unknown field 'zzz'; known: hidden, dropout"),
        ("raw", {"dim": "3"}, "raw: unknown field 'dim'; it has none"),
        ("gat", {"heads": "many"}, "gat: heads must be a whole number; got 'many'"),
        ("gat", {"heads": 0}, "gat: heads must be at least 1; got 0"),
        ("gcn", {"dropout": "1.0"}, r"gcn: dropout must be in \[0, 1\); got 1.0"),
        ("gcn", {"weight_decay": "-1"}, "gcn: weight_decay must be 0 or more; got -1.0"),
        ("ep-b", {"margin": "nan"}, "ep-b: margin must be positive; got nan"),
        ("propagation", {"hops": "-1"}, "propagation: hops must be 0 or more; got -1"),
        (
            "propagation",
            {"feature_scaling": "x"},
            "feature_scaling must be none or row or auto; got 'x'",
        ),
        ("grace", {"edge_drop_1": 1.0}, r"grace: edge_drop_1 must be in \[0, 1\); got 1.0"),
        ("grace", {"activation": "elu"}, "grace: activation must be relu or prelu; got 'elu'"),
        (
            "cca-ssg",
            {"feature_scaling": "x"},
            "feature_scaling must be 'none', 'row' or 'auto'; got 'x'",
        ),
        ("bgrl", {"momentum": "1"}, r"bgrl: momentum must be in \[0, 1\); got 1.0"),
        ("graphmae", {"mask_rate": 0.0}, r"graphmae: mask_rate must be in \(0, 1\); got 0.0"),
        ("label-propagation", {"class_mass": "maybe"}, "class_mass must be true or false"),
    ],
)
def test_a_bad_field_is_refused_in_one_line(name, changed, message):
    with pytest.raises(ParameterError, match=message):
        BASELINES[name].method("", **changed)


def test_a_build_may_be_partial():
    half = Baseline("half", "Half", partial(type(quick("gcn")), hidden=4))
    assert half.method("", dropout="0.1").hidden == 4
    assert half.method("", hidden="5").hidden == 5
    assert is_unsupervised(RawFeatures())
    assert not is_unsupervised(half.method(""))
