"""What is constant on a graph stays 0: rounding is not enlarged to the size of a signal."""

import itertools
import warnings
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl import Graph, GraphCL, Recipe, open_graph
from graphcl.errors import TrainingWarning


def complete(nodes):
    return nodes, np.array(list(itertools.combinations(range(nodes), 2))).T


def complete_bipartite(left, right):
    pairs = itertools.product(range(left), range(left, left + right))
    return left + right, np.array(list(pairs)).T


def star(leaves):
    return leaves + 1, np.array([np.zeros(leaves, int), np.arange(1, leaves + 1)])


def circulant(nodes):
    around = np.arange(nodes)
    steps = [np.array([around, (around + step) % nodes]) for step in (1, 2, 3)]
    return nodes, np.concatenate(steps, axis=1)


GRAPHS = {
    "K10": complete(10),
    "K60": complete(60),
    "K100": complete(100),
    "bipartite": complete_bipartite(20, 30),
    "star": star(80),
    "regular": circulant(50),
    "empty": (40, np.zeros((2, 0), int)),
}


def columns(kind, nodes):
    normal = np.random.default_rng(0).normal(size=(nodes, 3)).astype(np.float32)
    constant = np.full((nodes, 3), 0.1, np.float32)
    return {"normal": normal, "constant": constant, "both": np.hstack([normal, constant])}[kind]


@cache
def trained(shape, kind, scaling, encoder):
    nodes, edges = GRAPHS[shape]
    graph = Graph.from_edge_index(edges, columns(kind, nodes))
    recipe = Recipe("default", steps=3, feature_scaling=scaling, encoder=encoder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        model = GraphCL(recipe, dim=32, epochs=3, device="cpu", verbose=False).fit(graph)
    return model, model.transform(graph)


@settings(deadline=None)  # the first example of each kind trains
@given(
    shape=st.sampled_from(list(GRAPHS)),
    kind=st.sampled_from(["normal", "constant", "both"]),
    scaling=st.sampled_from(["auto", "none", "row", "unit"]),
    encoder=st.sampled_from(["residual", "mean"]),
    seed=st.integers(0, 1000),
)
def test_renumbering_the_nodes_does_not_move_embeddings(shape, kind, scaling, encoder, seed):
    model, z = trained(shape, kind, scaling, encoder)
    nodes, edges = GRAPHS[shape]
    order = np.random.default_rng(seed).permutation(nodes)
    new_number = np.argsort(order)
    renumbered = Graph.from_edge_index(new_number[edges], columns(kind, nodes)[order])
    moved = np.abs(model.transform(renumbered) - z[order]).max()
    assert np.abs(z).max() < 20
    assert moved <= 1e-4 * np.abs(z).max()


def said(model):
    return [sign.message for sign in model.health_.warnings if sign.name == "constant"]


def test_a_constant_part_is_0_and_is_named():
    nodes, edges = GRAPHS["K60"]
    graph = Graph.from_edge_index(edges, columns("normal", nodes))
    with pytest.warns(TrainingWarning, match="smoothed features: the same for all nodes"):
        model = GraphCL(dim=32, epochs=3, device="cpu", verbose=False).fit(graph)
    z = model.transform(graph)
    assert not z[:, -4:].any()
    assert z[:, :-4].std(axis=0).min() > 0.05


@pytest.mark.parametrize("scaling", ["none", "row", "unit"])
def test_embeddings_of_constant_features_are_0(scaling):
    model, z = trained("K60", "constant", scaling, "residual")
    assert not z.any()
    assert said(model)[0].startswith("own features, layer 1, layer 2 and smoothed features: ")


def test_a_small_difference_on_a_large_offset_is_kept():
    """Years have three digits of difference in float32: that is no rounding."""
    nodes, edges = GRAPHS["regular"]
    years = 2020 + columns("normal", nodes) * 0.5
    recipe = Recipe("default", feature_scaling="none", steps=3)
    model = GraphCL(recipe, dim=32, epochs=3, device="cpu", verbose=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)
        z = model.fit_transform(Graph.from_edge_index(edges, years))
    assert said(model) == []
    assert np.square(z).sum() == pytest.approx(4 * nodes, rel=0.01)


def test_a_part_that_differs_is_not_warned_of():
    for shape in ("bipartite", "star", "regular", "empty"):
        assert said(trained(shape, "normal", "auto", "residual")[0]) == []


@pytest.mark.parametrize("form", ["sampled", "store"])
def test_it_holds_for_sampled_batches_and_stores_too(form, tmp_path):
    nodes, edges = GRAPHS["K60"]
    graph = Graph.from_edge_index(edges, columns("normal", nodes))
    mode = "auto"
    if form == "store":
        graph.save(tmp_path / "store")
        graph = open_graph(tmp_path / "store")
    else:
        mode = "sampled"
    model = GraphCL(dim=32, epochs=1, mode=mode, device="cpu", verbose=False)
    with pytest.warns(TrainingWarning, match="smoothed features: the same for all nodes"):
        model.fit(graph)
    assert np.abs(model.transform(graph)).max() < 20
