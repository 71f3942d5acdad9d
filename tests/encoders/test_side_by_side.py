import math

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from hypothesis.extra.numpy import arrays as some_arrays

from graphcl.embedding import embed, embed_graph
from graphcl.encoders import SideBySide, build_encoder
from graphcl.encoders.side_by_side import EXACT, divide_columns, principal_directions
from graphcl.errors import ParameterError
from graphcl.graphs.tensors import graph_tensors
from graphcl.recipes import load_recipe
from tests.encoders.test_encoders import elu
from tests.kernels.test_adjacency_rows import with_weights

CPU = torch.device("cpu")
ALL = {"normalisation": "layer", "side_by_side": True, "own_features": 0.5}
SMOOTHED = ALL | {"own_features": 0.3, "smoothed_features": 0.3}


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


def smoothed_by_loops(graph, smoother, layers):
    """The features times S, then as often the mean over each node and its neighbours."""
    h = np.asarray(graph.x, dtype=np.float64) @ smoother.double().numpy()
    for _ in range(layers):
        rows = []
        for u in range(graph.num_nodes):
            mine = slice(graph.indptr[u], graph.indptr[u + 1])
            around = graph.indices[mine]
            weights = np.ones(len(around)) if graph.edge_weight is None else graph.edge_weight[mine]
            own = sum(weights) / len(weights) if len(weights) else 1.0
            total = own * h[u] + sum(w * h[v] for w, v in zip(weights, around, strict=True))
            rows.append(total / (own + sum(weights)))
        h = np.array(rows)
    return h


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("every_layer", [False, True])
@pytest.mark.parametrize("name", ["mean", "residual"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_last_columns_are_means_of_features(graph, name, layers, every_layer, weighted):
    graph = with_weights(graph) if weighted else graph
    tensors = graph_tensors(graph, device=CPU)
    beyond = SMOOTHED | {"side_by_side": every_layer, "layers": layers}
    encoder = built(graph, name, dim=17, **beyond)
    without = beyond | {"own_features": 5 / 12, "smoothed_features": 0.0}
    alone = built(graph, name, dim=12, **without)
    assert (encoder.beside.smoothed, alone.beside.smoothed) == (5, 0)
    # They change nothing of what is trained, nor of what stands before them.
    for key, weight in alone.named_parameters():
        assert torch.equal(weight, encoder.get_parameter(key))
    assert torch.equal(encoder(*tensors), alone(*tensors))
    raw = embed(encoder, *tensors)
    np.testing.assert_allclose(raw[:, :12], embed(alone, *tensors), rtol=1e-4, atol=1e-5)
    expected = smoothed_by_loops(graph, encoder.beside.smoother, layers)
    np.testing.assert_allclose(raw[:, 12:], expected, rtol=1e-4, atol=1e-5)
    encoder.beside.calibrate(3 * torch.randn(50, 17, generator=torch.Generator()) + 1)
    shift, scale = (part[12:].numpy() for part in (encoder.beside.shift, encoder.beside.scale))
    assert np.abs(shift).min() > 0 < abs(scale[0] - 1)
    found = embed(encoder, *tensors)[:, 12:]
    np.testing.assert_allclose(found, (expected - shift) * scale, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", ["mean", "residual"])
@pytest.mark.parametrize(
    "beyond",
    [
        ALL,
        {"side_by_side": True},
        {"own_features": 0.3},
        {"normalisation": "layer"},
        SMOOTHED,
        {"smoothed_features": 0.3},
    ],
    ids=["all", "layers", "own", "norm", "smoothed", "smoothed alone"],
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
    smoothed_features=st.floats(0, 0.95),
)
def test_columns_are_divided(
    num_features, dim, layers, side_by_side, own_features, repeat_own, smoothed_features
):
    options = {"dim": dim, "layers": layers, "repeat_own": repeat_own}
    options |= {"side_by_side": side_by_side, "own_features": own_features}
    options |= {"smoothed_features": smoothed_features}
    least = layers if side_by_side else 1
    if dim < least:
        with pytest.raises(ParameterError, match="dim"):
            divide_columns(num_features, **options)
        return
    own, smoothed, widths = divide_columns(num_features, **options)
    most = dim if repeat_own else num_features
    assert own == min(most, round(own_features * dim), dim - least)
    assert smoothed == min(most, round(smoothed_features * dim), dim - least - own)
    assert len(widths) == layers
    assert own + smoothed + (sum(widths) if side_by_side else widths[-1]) == dim
    assert min(widths) >= 1
    assert max(widths[:-1], default=widths[-1]) <= widths[-1]


def drawn_rows(shape, sizes, seed=0):
    """Rows with singular values `sizes`, and their right singular vectors, the largest first."""
    random = np.random.default_rng(seed)
    left, right = (np.linalg.qr(random.normal(size=(side, len(sizes))))[0] for side in shape)
    return torch.tensor(left * sizes @ right.T, dtype=torch.float32), right


def directions_of(x, count, seed=0):
    return principal_directions(x, count, torch.Generator().manual_seed(seed)).double().numpy()


def orthonormal(columns):
    return np.allclose(columns.T @ columns, np.eye(columns.shape[1]), atol=1e-5)


@pytest.mark.parametrize("shape", [(40, 12), (12, 40), (30, 30), (9, 1), (1, 9), (1, 1)])
def test_directions_are_those_of_the_singular_values(shape):
    rank = min(shape)
    x, right = drawn_rows(shape, 0.7 ** np.arange(rank))
    for count in {1, -(-rank // 2), rank, rank + 5}:
        found = directions_of(x, count)
        assert found.shape == (shape[1], min(count, rank))
        assert orthonormal(found)
        # One by one, in order, and each either way round.
        along = np.abs(np.sum(found * right[:, : found.shape[1]], axis=0))
        np.testing.assert_allclose(along, 1, atol=1e-4)


@pytest.mark.parametrize("shape", [(EXACT + 80, EXACT + 200), (EXACT + 200, EXACT + 80)])
def test_directions_of_a_large_table_are_found_in_a_random_subspace(shape):
    count = 20
    sizes = np.concatenate([np.linspace(2, 1, count), 0.4 * 0.99 ** np.arange(300)])
    x, right = drawn_rows(shape, sizes)
    found = directions_of(x, count)
    assert found.shape == (shape[1], count)
    assert orthonormal(found)
    cosines = np.linalg.svd(found.T @ right[:, :count])[1]  # of the angles between both subspaces
    assert cosines.min() > 0.9999
    assert not np.array_equal(found, directions_of(x, count, seed=1))  # it is random
    np.testing.assert_array_equal(found, directions_of(x, count))
    # Where no gap helps, they hold nearly as much as the best.
    x, right = drawn_rows(shape, 0.98 ** np.arange(400))
    held, best = (
        np.square(x.numpy() @ basis).sum() for basis in (directions_of(x, count), right[:, :count])
    )
    assert held > 0.99 * best


@pytest.mark.parametrize("shape", [(200, 50), (50, 200), (EXACT + 1, EXACT + 7)])
def test_there_are_no_more_directions_than_the_rows_have(shape):
    x, right = drawn_rows(shape, np.array([3.0, 2.0, 1.0]))
    found = directions_of(x, 20)
    np.testing.assert_allclose(found @ found.T, right @ right.T, atol=1e-5)
    assert found.shape[1] == 3
    row = torch.randn(shape[1], generator=torch.Generator().manual_seed(0))
    constant = directions_of(row.expand(shape), 20)
    assert constant.shape[1] == 1
    assert abs(constant[:, 0] @ (row / row.norm()).numpy()) == pytest.approx(1, abs=1e-5)
    assert directions_of(torch.zeros(shape), 20).shape == (shape[1], 0)


@given(
    rows=some_arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=12),
                     elements=st.integers(-3, 3).map(float)),
    count=st.integers(1, 14),
)  # fmt: skip
def test_directions_of_any_rows_hold_as_much_as_the_best(rows, count):
    found = directions_of(torch.from_numpy(rows), count)
    rows = rows.astype(np.float64)
    sizes = np.linalg.svd(rows, compute_uv=False)
    assert found.shape == (rows.shape[1], min(count, int((sizes > 1e-5 * sizes[0]).sum())))
    assert orthonormal(found)
    held, best = np.square(rows @ found).sum(), np.square(sizes[:count]).sum()
    assert held == pytest.approx(best, rel=1e-5)


def part_of(features, own, smoothed, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return SideBySide(features, own, [4], smoothed=smoothed, every_layer=True, generator=generator)


def test_turning_takes_features_to_their_principal_directions_in_a_random_basis():
    x, right = drawn_rows((90, 30), 0.8 ** np.arange(30))
    part = part_of(30, 12, 5)
    part.turn(x, torch.Generator().manual_seed(1))
    for turned, width in ((part.projection, 12), (part.smoother, 5)):
        turned = turned.double().numpy()
        assert orthonormal(turned)
        span = right[:, :width]
        np.testing.assert_allclose(turned @ turned.T, span @ span.T, atol=1e-3)
        # No column is a direction itself: the first would hold most.
        assert np.abs(span.T @ turned).max() < 0.99
    again, other = part_of(30, 12, 5), part_of(30, 12, 5)
    again.turn(x, torch.Generator().manual_seed(1))
    other.turn(x, torch.Generator().manual_seed(2))
    assert torch.equal(again.projection, part.projection)
    assert torch.equal(again.smoother, part.smoother)
    assert not torch.equal(other.projection, part.projection)


def test_rows_of_few_directions_fill_all_columns_alike():
    """Then the columns cannot be orthonormal, but rows of features keep their products."""
    x, right = drawn_rows((90, 30), np.array([3.0, 2.0, 1.0]))
    part = part_of(30, 12, 2)
    part.turn(x, torch.Generator().manual_seed(1))
    turned = part.projection.double().numpy()
    np.testing.assert_allclose(turned @ turned.T, right @ right.T, atol=1e-5)
    assert np.linalg.norm(turned, axis=0).min() > 0
    assert orthonormal(part.smoother.double().numpy())
    part.turn(torch.zeros(90, 30), torch.Generator())
    assert not part.projection.any()  # nothing is known of features that are all zero


def test_the_identity_stays_where_all_features_fit():
    x, _ = drawn_rows((90, 8), 0.8 ** np.arange(8))
    part = part_of(8, 20, 3)
    part.turn(x, torch.Generator().manual_seed(1))
    np.testing.assert_array_equal(part.projection, np.tile(np.eye(8), 3)[:, :20])
    assert orthonormal(part.smoother.double().numpy())
    fits = part_of(8, 3, 8)
    fits.turn(x, torch.Generator().manual_seed(1))
    np.testing.assert_array_equal(fits.smoother, np.eye(8))
    random = part_of(8, 3, 3)
    before = random.projection.clone()
    random.turn(torch.zeros(0, 8), torch.Generator())  # no row to learn from
    assert torch.equal(random.projection, before)


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
    assert other.smoothed_features == 0
    message = "encoder 'gcn' takes no normalisation; only mean and residual do"
    with pytest.raises(ParameterError, match=f"recipe: {message}"):
        recipe.replace(encoder="gcn", normalisation="layer")
    with pytest.raises(ParameterError, match=message):
        build_encoder("gcn", 3, generator=torch.Generator(), **ALL)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("normalisation", "batch"),
        ("own_features", 1.0),
        ("own_features", -0.1),
        ("smoothed_features", 1.0),
        ("smoothed_features", -0.1),
    ],
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
        assert recipe.smoothed_features == 0
        assert "side_by_side" not in recipe.identity()
        assert "smoothed_features" not in recipe.identity()
