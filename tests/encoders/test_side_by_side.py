import math

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphcl.embedding import embed, embed_graph
from graphcl.encoders import SideBySide, build_encoder
from graphcl.encoders.side_by_side import divide_columns
from graphcl.errors import ParameterError
from graphcl.graphs.tensors import graph_tensors
from graphcl.recipes import load_recipe
from tests.encoders.test_encoders import elu

CPU = torch.device("cpu")
ALL = {"normalisation": "layer", "side_by_side": True, "own_features": 0.5}


def built(graph, name="residual", *, dim=13, layers=2, seed=0, **beyond):
    encoder = build_encoder(
        name,
        graph.num_features,
        dim=dim,
        layers=layers,
        generator=torch.Generator().manual_seed(seed),
        **(beyond or ALL),
    )
    for parameter in encoder.parameters():  # a normalisation of 1 and 0 could be left out unseen
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0, 0.3, generator=torch.Generator().manual_seed(7))
    return encoder


def plain_parts(graph, encoder, last):
    """Own features, then every layer, node by node; the parts as they are before calibration."""
    h = np.asarray(graph.x, dtype=np.float64)
    parts = [h @ encoder.beside.projection.double().numpy()]
    for number in range(last + 1):
        pooled, own = (
            weights[number].detach().double().numpy()
            for weights in (encoder.pooled_weights, encoder.own_weights)
        )
        rows = []
        for u in range(graph.num_nodes):
            members = [u, *graph.indices[graph.indptr[u] : graph.indptr[u + 1]]]
            row = sum(h[v] for v in members) / len(members) @ pooled + h[u] @ own
            if number < last:
                norm = encoder.normalisations[number]
                mean = sum(row) / len(row)
                variance = sum((value - mean) ** 2 for value in row) / len(row)
                row = [
                    elu((value - mean) / math.sqrt(variance + norm.eps) * w + b)
                    for value, w, b in zip(
                        row, norm.weight.tolist(), norm.bias.tolist(), strict=True
                    )
                ]
            rows.append(row)
        h = np.array(rows)
        parts.append(h)
    return parts


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_embeddings_are_the_plain_equations(graph, layers):
    encoder = built(graph, layers=layers)
    x, adjacency = graph_tensors(graph, device=CPU)
    parts = plain_parts(graph, encoder, layers - 1)
    expected = np.concatenate(parts, axis=1)
    assert encoder.width == expected.shape[1] == 13
    np.testing.assert_allclose(embed(encoder, x, adjacency), expected, rtol=1e-4, atol=1e-5)
    # What training contrasts is the last layer alone.
    np.testing.assert_allclose(encoder(x, adjacency).detach(), parts[-1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", ["mean", "residual"])
@pytest.mark.parametrize(
    "beyond",
    [ALL, {"side_by_side": True}, {"own_features": 0.3}, {"normalisation": "layer"}],
    ids=["all", "layers", "own", "norm"],
)
def test_layer_by_layer_is_the_whole(graph, tmp_path, name, beyond, sparse):
    if sparse:
        graph = graph.replace(x=scipy.sparse.csr_array(graph.x * (graph.x > 0)))
    encoder = built(graph, name, **beyond)
    if encoder.beside is not None:
        encoder.beside.calibrate(torch.randn(50, 13) * 3 + 1)
    whole = embed(encoder, *graph_tensors(graph, device=CPU))
    for options in ({"block_rows": 7}, {"out": tmp_path / "z.npy"}, {"nodes": slice(11, 30)}):
        rows = embed_graph(encoder, graph, device=CPU, **options)["node"]
        expected = whole[options.get("nodes", slice(None))]
        np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-6)


@given(
    num_features=st.integers(1, 50),
    dim=st.integers(1, 200),
    layers=st.integers(1, 5),
    side_by_side=st.booleans(),
    own_features=st.floats(0, 0.95),
    repeat_own=st.booleans(),
)
def test_columns_are_divided(num_features, dim, layers, side_by_side, own_features, repeat_own):
    options = {"dim": dim, "layers": layers, "repeat_own": repeat_own}
    options |= {"side_by_side": side_by_side, "own_features": own_features}
    least = layers if side_by_side else 1
    if dim < least:
        with pytest.raises(ParameterError, match="dim"):
            divide_columns(num_features, **options)
        return
    own, widths = divide_columns(num_features, **options)
    most = dim if repeat_own else num_features
    assert own == min(most, round(own_features * dim), dim - least)
    assert len(widths) == layers
    assert own + (sum(widths) if side_by_side else widths[-1]) == dim
    assert min(widths) >= 1
    assert max(widths[:-1], default=widths[-1]) <= widths[-1]


def test_all_features_are_kept_where_they_fit(graph):
    encoder = built(graph, dim=4 * graph.num_features)
    kept = embed(encoder, *graph_tensors(graph, device=CPU))[:, : graph.num_features]
    np.testing.assert_allclose(kept, graph.x, rtol=1e-6)


def test_a_projection_keeps_inner_products():
    """Over many columns, R R^T is the identity in the mean: its entries deviate by own^-0.5."""
    generator = torch.Generator().manual_seed(0)
    beside = SideBySide(900, 600, [4], every_layer=True, generator=generator)
    products = beside.projection @ beside.projection.T
    assert products.diagonal().mean() == pytest.approx(1, abs=0.01)
    off = products - products.diagonal().diag()
    assert off.square().sum() / (900 * 899) == pytest.approx(1 / 600, rel=0.03)


def test_calibration_brings_parts_to_one_size():
    beside = SideBySide(9, 2, [3, 4], every_layer=True, generator=torch.Generator().manual_seed(0))
    raw = torch.randn(500, 9) * torch.tensor([1.0] * 2 + [50.0] * 3 + [0.01] * 4) + 5
    beside.calibrate(raw)
    z = torch.cat([beside.finish(raw[:, c], c) for c in map(beside.columns, (None, 0, 1))], dim=1)
    torch.testing.assert_close(z.mean(0), torch.zeros(9), rtol=0, atol=1e-3)
    for columns in (slice(0, 2), slice(2, 5), slice(5, 9)):
        assert z[:, columns].square().sum(1).mean() == pytest.approx(1, rel=1e-3)
    before = beside.scale.clone()
    beside.calibrate(z)  # of embeddings that are calibrated already: nothing changes
    torch.testing.assert_close(beside.scale, before, rtol=1e-3, atol=0)


def test_few_features_are_repeated_until_they_fill_their_share(graph):
    features = graph.num_features
    dim = 8 * features + 12
    encoder = built(graph, dim=dim, **ALL, repeat_own=True)
    assert [weight.shape[1] for weight in encoder.own_weights] == [dim // 4, dim // 4]
    own = embed(encoder, *graph_tensors(graph, device=CPU))[:, : dim // 2]
    expected = np.stack([graph.x[:, column % features] for column in range(dim // 2)], axis=1)
    np.testing.assert_allclose(own, expected, rtol=1e-6)


def test_a_part_without_variation_stays_finite():
    beside = SideBySide(9, 0, [3], every_layer=True, generator=torch.Generator())
    beside.calibrate(torch.full((10, 3), 2.0))
    assert torch.equal(beside.finish(torch.full((4, 3), 2.0), slice(0, 3)), torch.zeros(4, 3))


def test_other_encoders_come_without():
    recipe = load_recipe("cora").replace(encoder="residual", **ALL)
    assert recipe.side_by_side
    assert recipe.replace(encoder="mean").side_by_side
    other = recipe.replace(encoder="gcn")
    assert (other.normalisation, other.side_by_side, other.own_features) == ("none", False, 0.0)
    message = "encoder 'gcn' takes no normalisation; only mean and residual do"
    with pytest.raises(ParameterError, match=f"recipe: {message}"):
        recipe.replace(encoder="gcn", normalisation="layer")
    with pytest.raises(ParameterError, match=message):
        build_encoder("gcn", 3, generator=torch.Generator(), **ALL)


@pytest.mark.parametrize(
    ("key", "value"), [("normalisation", "batch"), ("own_features", 1.0), ("own_features", -0.1)]
)
def test_values_out_of_bounds(key, value):
    with pytest.raises(ParameterError, match=key):
        load_recipe("cora").replace(**{key: value})


def test_recipes_of_the_paper_do_without():
    for name in ("cora", "citeseer", "pubmed", "ppi", "reddit"):
        recipe = load_recipe(name)
        assert (recipe.normalisation, recipe.side_by_side, recipe.own_features) == (
            "none",
            False,
            0.0,
        )
        assert "side_by_side" not in recipe.identity()
