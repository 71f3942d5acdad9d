"""What holds of every baseline that takes one graph."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from graphcl.errors import GraphError, ParameterError, RecipeError
from graphcl.estimator.model import GraphCL
from graphcl.graphs.collection import disjoint_union
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import graph_tensors
from graphcl.research.systems import SYSTEMS
from graphcl.research.systems.layers import Symmetric
from graphcl.research.systems.shallow import RawFeatures
from graphcl.research.systems.system import (
    CHECK_EVERY,
    EarlyStopping,
    Labelled,
    System,
    Unsupervised,
    cosine_decay,
    seeded,
    settings_of,
    training_graph,
    whole_graph,
)
from tests.conftest import dense_adjacency, random_collection
from tests.research.systems.communities import (
    communities,
    with_other_unseen,
    with_other_unseen_nodes,
)

CPU = torch.device("cpu")
QUICK = {
    "raw": {},
    "propagation": {},
    "graphcl": {"dim": 8, "epochs": 2},
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
    "trees": {},
}
SUPERVISED = ("label-propagation", "gcn", "gat")  # of one class per node


def quick(name):
    return SYSTEMS[name].method("", **QUICK[name])


def outcome(name, graph, seed=0):
    method = quick(name)
    run = method.embed if isinstance(method, Unsupervised) else method.fit_predict
    return run(graph, seed=seed, device=CPU)


@pytest.mark.parametrize("name", QUICK)
def test_a_seed_decides_every_bit_and_global_streams_are_left_alone(name, graph):
    torch.manual_seed(5)
    state = torch.random.get_rng_state()
    first, second, other = (outcome(name, graph, seed) for seed in (3, 3, 4))
    assert np.array_equal(first, second)
    assert torch.equal(torch.random.get_rng_state(), state)
    if isinstance(quick(name), Unsupervised):
        assert np.array_equal(first, other) == SYSTEMS[name].deterministic


@pytest.mark.parametrize("name", sorted(set(QUICK) - {*SUPERVISED, "trees"}))
def test_an_unsupervised_one_never_reads_labels(name, graph):
    z = outcome(name, graph)
    assert z.dtype == np.float32
    assert z.shape[0] == graph.num_nodes
    blind = graph.replace(y=None, train_mask=None, val_mask=None, test_mask=None)
    assert np.array_equal(outcome(name, blind), z)


@pytest.mark.parametrize("name", [*SUPERVISED, "trees"])
def test_a_supervised_one_never_reads_test_labels(name, graph):
    predicted = outcome(name, graph)
    assert predicted.dtype == np.int64
    assert predicted.shape == (graph.num_nodes,)
    assert set(predicted) <= {0, 1, 2}
    wrong = np.where(graph.test_mask, (graph.y + 1) % 3, graph.y)
    assert np.array_equal(outcome(name, graph.replace(y=wrong)), predicted)


@pytest.mark.parametrize("name", SUPERVISED)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, "has none"),
        ({"train_mask": None}, "masks; validation and test nodes are given, train nodes are not"),
        (dict.fromkeys(("train_mask", "val_mask", "test_mask")), "validation masks; it has none"),
        ({"y": np.zeros((60, 2), dtype=np.int64)}, "has several labels"),
        ({"y": np.full(60, -1)}, "no training node of random has a label"),
    ],
)
def test_a_supervised_one_says_what_it_lacks(name, graph, changes, message):
    with pytest.raises(GraphError, match=f"^{name}: .*{message}"):
        outcome(name, graph.replace(**changes))


INDUCTIVE = {
    "dgi-inductive": {"dim": 8, "epochs": 1},
    "graphsage-gcn": {"dim": 8, "epochs": 1},
    "graphsage-mean": {"dim": 8, "epochs": 1},
    "graphsage-lstm": {"dim": 8, "epochs": 1},
    "graphsage-pool": {"dim": 8, "epochs": 1},
    "gaan": {"dim": 8, "epochs": 1},
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_it_is_known_whether_weights_matter(name, graph):
    edges = graph.edge_index()
    weights = np.random.default_rng(0).uniform(0.01, 100, graph.num_edges).astype("float32")
    ends = edges[:, edges[0] < edges[1]]
    weighted = graph.replace(
        edge_weight=graph.from_edge_index(ends, graph.x, edge_weight=weights).edge_weight
    )
    settings = QUICK | INDUCTIVE | {"gcn": {"epochs": 60}}  # enough to tell nodes apart
    method = SYSTEMS[name].method("", **settings[name])
    run = method.embed if isinstance(method, Unsupervised) else method.fit_predict
    plain, other = (run(one, seed=0, device=CPU) for one in (graph, weighted))
    assert np.array_equal(plain, other) != SYSTEMS[name].weighted


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


@pytest.mark.parametrize("baseline", SYSTEMS.values(), ids=SYSTEMS)
def test_settings_build(baseline):
    for dataset, changed in {"": {}, **baseline.settings}.items():
        method = baseline.method(dataset)
        assert {name: getattr(method, name) for name in changed} == changed
    assert SYSTEMS[baseline.name] is baseline


@pytest.mark.parametrize("name", sorted(set(QUICK) - {"raw"}))
def test_text_is_read_as_the_fields_type(name):
    values = settings_of(SYSTEMS[name].method("cora"))
    assert list(values) == SYSTEMS[name].keys()
    text = {key: str(value) for key, value in values.items()}
    assert settings_of(SYSTEMS[name].method("", **text)) == values


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
            "feature_scaling must be 'none', 'row', 'unit' or 'auto'; got 'x'",
        ),
        ("grace", {"edge_drop_1": 1.0}, r"grace: edge_drop_1 must be in \[0, 1\); got 1.0"),
        ("grace", {"encoder": "mean"}, "encoder must be convolutions or residual; got 'mean'"),
        ("grace", {"activation": "elu"}, "grace: activation must be relu or prelu; got 'elu'"),
        (
            "cca-ssg",
            {"feature_scaling": "x"},
            "feature_scaling must be 'none', 'row', 'unit' or 'auto'; got 'x'",
        ),
        ("bgrl", {"momentum": "1"}, r"bgrl: momentum must be in \[0, 1\); got 1.0"),
        ("graphmae", {"mask_rate": 0.0}, r"graphmae: mask_rate must be in \(0, 1\); got 0.0"),
        ("label-propagation", {"class_mass": "maybe"}, "class_mass must be true or false"),
    ],
)
def test_a_bad_field_is_refused_in_one_line(name, changed, message):
    with pytest.raises(ParameterError, match=message):
        SYSTEMS[name].method("", **changed)


def test_a_system_may_be_one_with_other_defaults():
    half = System("half", "Half", type(quick("gcn")), changed={"hidden": 4})
    assert half.method("", dropout="0.1").hidden == 4
    assert half.method("", hidden="5").hidden == 5
    assert isinstance(RawFeatures(), Unsupervised)
    assert not isinstance(half.method(""), Unsupervised)


def test_a_union_is_the_blocks_of_its_graphs():
    collection = random_collection()
    union = disjoint_union(collection.graphs, "all")
    blocks = [dense_adjacency(graph) for graph in collection.graphs]
    expected = scipy.sparse.block_diag(blocks).toarray()
    np.testing.assert_array_equal(dense_adjacency(union), expected)
    np.testing.assert_array_equal(union.x, np.concatenate([g.x for g in collection.graphs]))
    np.testing.assert_array_equal(union.y, collection.y)


def test_a_union_of_sparse_features_is_sparse(graph):
    sparse = Graph.from_edge_index(graph.edge_index(), scipy.sparse.csr_array(graph.x))
    union = disjoint_union([sparse, sparse], "two")
    np.testing.assert_array_equal(union.x.toarray(), np.concatenate([graph.x, graph.x]))


def same(first, second):
    return all(
        np.array_equal(getattr(first, name), getattr(second, name))
        for name in ("indptr", "indices", "x")
    )


def test_what_is_learned_from_holds_no_label_and_nothing_unseen(graph):
    collection = communities()
    for inductive in (False, True):
        seen = training_graph(collection, inductive=inductive)
        assert seen.y is None
        assert seen.num_nodes == collection.split_nodes[0]
        other = training_graph(with_other_unseen(collection, val=True), inductive=inductive)
        assert same(seen, other)
    other = with_other_unseen_nodes(graph)
    assert not same(graph, other)
    assert same(training_graph(graph, inductive=True), training_graph(other, inductive=True))
    assert training_graph(graph, inductive=False).y is None
    assert whole_graph(graph) is graph


def test_labelled_nodes_are_found_where_training_sees_them(graph):
    whole = Labelled.of(graph, inductive=False, owner="t")
    np.testing.assert_array_equal(whole.nodes, np.flatnonzero(graph.train_mask))
    inside = Labelled.of(graph, inductive=True, owner="t")
    np.testing.assert_array_equal(inside.nodes, np.arange(graph.train_mask.sum()))
    np.testing.assert_array_equal(inside.graph.x[inside.nodes], graph.x[graph.train_mask])
    for found in (whole, inside):
        np.testing.assert_array_equal(found.y, graph.y[graph.train_mask])
        np.testing.assert_array_equal(found.val_y, graph.y[found.val])
    collection = random_collection()
    found = Labelled.of(collection, inductive=False, owner="t")
    np.testing.assert_array_equal(found.y, collection.y[: collection.split_nodes[0]])
    np.testing.assert_array_equal(whole_graph(collection).y[found.val], found.val_y)


def test_unlabelled_nodes_are_left_out(graph):
    y = graph.y.copy()
    gone = np.flatnonzero(graph.train_mask)[:5]
    y[gone] = -1
    for inductive in (False, True):
        found = Labelled.of(graph.replace(y=y), inductive=inductive, owner="t")
        assert len(found.nodes) == len(found.y) == graph.train_mask.sum() - 5
        assert (found.y >= 0).all()
        features = found.graph.x[found.nodes]
        np.testing.assert_array_equal(features, graph.x[graph.train_mask & (y >= 0)])


def test_what_is_missing_is_named(graph):
    with pytest.raises(GraphError, match="Gaan: learns from labels; random has none"):
        Labelled.of(graph.replace(y=None), inductive=False, owner="Gaan")
    with pytest.raises(GraphError, match="masks; validation and test nodes are given, train nodes"):
        Labelled.of(graph.replace(train_mask=None), inductive=False, owner="Gaan")
    free = graph.replace(train_mask=None, val_mask=None, test_mask=None)
    with pytest.raises(
        GraphError, match="Gaan: random needs train and validation masks; it has no"
    ):
        Labelled.of(free, inductive=False, owner="Gaan")
    nobody = np.zeros(graph.num_nodes, dtype=bool)
    with pytest.raises(GraphError, match="Gaan: no validation node of random has a label"):
        Labelled.of(graph.replace(val_mask=nobody), inductive=False, owner="Gaan")
    bare = communities().train[0].replace(y=None)
    with pytest.raises(GraphError, match="learns from labels"):
        Labelled.of(
            replace(communities(), train=(bare,), val=(bare,), test=()),
            inductive=False,
            owner="Gaan",
        )


def test_graphcl_is_the_estimator(graph, collection):
    for data in (graph, collection):
        method = SYSTEMS["graphcl"].method("", dim="8", epochs=2, layers=1)
        seen = []
        z = method.embed(data, seed=3, device=CPU, on_epoch=lambda *done: seen.append(done))  # noqa: B023
        model = GraphCL(method.recipe, seed=3, device="cpu").fit(data)
        rows = model.transform(data)
        assert np.array_equal(z, np.concatenate(rows) if isinstance(rows, list) else rows)
        assert seen == [(1, 2), (2, 2)]
        assert method.costs["loss"] == model.history_[-1].loss
        assert method.costs["recipe_hash"] == method.recipe.hash


def test_settings_of_graphcl_are_the_datasets_recipe():
    assert settings_of(SYSTEMS["graphcl"].method("ppi"))["encoder"] == "residual"
    assert settings_of(SYSTEMS["graphcl"].method("", layers="3"))["layers"] == 3
    with pytest.raises((ParameterError, RecipeError), match="temprature"):
        SYSTEMS["graphcl"].method("", temprature=0.1)


@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60), st.integers(1, 12)
)
def test_early_stopping_is_the_plain_loop(epochs, patience):
    module = nn.Linear(1, 1)
    stopping = EarlyStopping(module, patience=patience)
    kept, waited, running = module.weight.item(), 0, True
    for number, (keep, improved) in enumerate(epochs, 1):
        with torch.no_grad():
            module.weight.fill_(number)
        stopping.update(keep=torch.tensor(keep), improved=torch.tensor(improved))
        if running:  # what a loop that asks at every epoch would do
            kept = number if keep else kept
            waited = 0 if improved else waited + 1
            running = waited < patience
        asked = number % CHECK_EVERY == 0
        assert stopping.stopped(number) == (asked and not running)
    stopping.restore()
    assert module.weight.item() == kept


def test_seeded_draws_are_those_of_the_name():
    def draw(seed, name):
        with seeded(seed, name, CPU):
            return torch.rand(3)

    assert torch.equal(draw(0, "a"), draw(0, "a"))
    assert not torch.equal(draw(0, "a"), draw(0, "b"))
    assert not torch.equal(draw(0, "a"), draw(1, "a"))


def test_a_weighted_graph_is_normalised_by_its_weights(graph):
    edges = graph.edge_index()
    heavy = Graph.from_edge_index(edges, graph.x, edge_weight=1.0 + edges.sum(0) % 3)
    _, adjacency = graph_tensors(heavy, device=torch.device("cpu"))
    a = np.zeros((graph.num_nodes, graph.num_nodes))
    a[tuple(heavy.edge_index())] = heavy.edge_weight
    degree = np.maximum((a > 0).sum(1), 1)
    a += np.diag(np.where(a.sum(1) > 0, a.sum(1) / degree, 1))
    scale = 1 / np.sqrt(a.sum(1))
    h = torch.randn(graph.num_nodes, 3)
    witness = torch.tensor(scale[:, None] * a * scale, dtype=torch.float32) @ h
    torch.testing.assert_close(Symmetric.normalised(adjacency) @ h, witness)


def test_products_and_gradients_are_the_dense_ones(graph):
    a = dense_adjacency(graph)
    loops = a + np.eye(len(a))
    scale = 1 / np.sqrt(loops.sum(1))
    dense = {"plain": a, "normalised": scale[:, None] * loops * scale}
    _, adjacency = graph_tensors(graph, device=torch.device("cpu"))
    for kind, matrix in dense.items():
        sparse = getattr(Symmetric, kind)(adjacency)
        witness = torch.tensor(matrix, dtype=torch.float32)
        h = torch.randn(graph.num_nodes, 5, requires_grad=True)
        weight = torch.randn(graph.num_nodes, 5)
        torch.testing.assert_close(sparse @ h, witness @ h)
        (ours,) = torch.autograd.grad((sparse @ h * weight).sum(), h)
        (theirs,) = torch.autograd.grad((witness @ h * weight).sum(), h)
        torch.testing.assert_close(ours, theirs)


def test_a_cosine_falls_from_1_to_0():
    assert (cosine_decay(0), cosine_decay(0.5), cosine_decay(1)) == (1, pytest.approx(0.5), 0)
