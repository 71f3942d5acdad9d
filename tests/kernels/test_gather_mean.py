"""The fused means against plain tensor operations; the Triton kernel through its interpreter."""

import os
from importlib.util import find_spec

import pytest
import torch

from graphcl.kernels.counter import kept, stream_key, threshold
from graphcl.kernels.gather_mean import Draws, Family, gather_mean
from tests import drawn

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
TRITON_DEVICE = "cpu" if INTERPRETED else "cuda"
NEEDS_TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


def level(
    *,
    parents=23,
    fan_out=5,
    width=70,
    edge_drop=0.2,
    feature_drop=0.4,
    dtype=None,
    per_seed=4,
    **kind,
):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, width, generator=generator).to(dtype or torch.float32)
    weight = torch.rand(parents * fan_out, generator=generator) + 0.5
    weight[::7] = 0  # empty slots
    keys = stream_key(3, "a"), stream_key(3, "b")
    draws = Draws(edge_drop, feature_drop, *keys, **kind)
    above = torch.randint(40, (parents,), generator=generator)
    below = torch.randint(40, (parents * fan_out,), generator=generator)
    return x, Family(above, below, weight, 7 + torch.arange(parents) // per_seed), draws


def outputs(x, family, *, own=None, column=0, fill=float("nan")):
    width = max(column, own or 0) + x.shape[1]
    return torch.full((2, len(family.parents), width), fill, dtype=x.dtype)


# Within a type, along an edge and against it between two types, and own features alone.
KINDS = {
    "plain": {},
    "directed": {"order": 1},
    "between": {"within": False, "order": 2},
    "alone": {"fan_out": 0},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("edge_drop", "feature_drop"), [(0, 0), (0.2, 0.4), (0.9, 0.9)])
def test_fused_is_the_reference(own, edge_drop, feature_drop, kind):
    x, family, draws = level(edge_drop=edge_drop, feature_drop=feature_drop, **KINDS[kind])
    columns = {"column": 3, "own": 3 + 70 if own and draws.within else None}
    ours, plain = (outputs(x, family, **columns, fill=7) for _ in range(2))
    edges, plain_edges = torch.empty_like(family.children), torch.empty_like(family.children)
    gather_mean(x, family, draws=draws, out=ours, edges=edges, **columns)
    drawn.gather_mean(x, family, draws=draws, out=plain, edges=plain_edges, **columns)
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)
    assert torch.equal(ours == 0, plain == 0)  # the same bits decide
    assert (ours[:, :, :3] == 7).all()
    assert torch.equal(edges, plain_edges)
    again = outputs(x, family, **columns, fill=7)
    gather_mean(x, family, draws=draws, out=again, **columns)
    assert torch.equal(again, ours)  # asked for or not, the same edges are there


def test_a_table_of_a_trees_nodes_alone_gives_the_same_means():
    """Rows from elsewhere, and seed nodes whose places do not follow one another."""
    x, family, draws = level(parents=24)
    whole = outputs(x, family, own=70)
    gather_mean(x, family, draws=draws, out=whole, own=70)
    above, below = family[:2]
    nodes = torch.unique(torch.cat([above, below])).flip(0)
    row = torch.full((40,), -1)
    row[nodes] = torch.arange(len(nodes))
    seeds = torch.tensor([3, 0, 5])  # of six, with four parents each
    some = (seeds[:, None] * 4 + torch.arange(4)).view(-1)
    children = below.view(-1, 5)[some].reshape(-1)
    weight = family.weight.view(-1, 5)[some].reshape(-1)
    rows = row[above[some]], row[children]
    moved = Family(above[some], children, weight, family.places[some], *rows)
    ours, plain = outputs(x, moved, own=70), outputs(x, moved, own=70)
    gather_mean(x[nodes], moved, draws=draws, out=ours, own=70)
    assert torch.equal(ours, whole[:, some])
    drawn.gather_mean(x[nodes], moved, draws=draws, out=plain, own=70)
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


def test_no_parents_are_no_means():
    x, family, draws = level(parents=0)
    gather_mean(x, family, draws=draws, out=outputs(x, family))


@pytest.mark.parametrize("within", [True, False])
def test_without_perturbation_it_is_the_weighted_mean(within):
    x, family, draws = level(edge_drop=0.0, feature_drop=0.0, within=within)
    family.weight[:5] = 0  # the first has no children at all
    parents, children, weight = family[:3]
    out = outputs(x, family, own=70)
    gather_mean(x, family, draws=draws, out=out, own=70 if within else None)
    for row in range(len(parents)):
        below = slice(row * 5, row * 5 + 5)
        total = within * x[parents[row]] + (weight[below, None] * x[children[below]]).sum(0)
        mean = total / (within + weight[below].sum()) if within or row else torch.zeros(70)
        torch.testing.assert_close(out[0, row, :70], mean)
        if within:
            torch.testing.assert_close(out[1, row, 70:], x[parents[row]])


def test_a_node_has_the_same_features_wherever_it_occurs_in_a_tree():
    x, none = torch.ones(5, 400), torch.empty(0)
    nodes, places = torch.tensor([2, 2, 2, 3]), torch.tensor([0, 0, 1, 0])
    first, second = out = torch.empty(2, 4, 400)
    draws = Draws(0.0, 0.5, (1, 2), stream_key(0, "features"))
    gather_mean(x, Family(nodes, none.long(), none, places), draws=draws, out=out)
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])
    assert not torch.equal(first[0], first[3])
    assert not torch.equal(first[0], second[0])
    assert set(first.unique().tolist()) == {0.0, 2.0}


def test_views_are_independent_and_drop_at_the_stated_rate():
    # A node that occurs twice in a tree is one node.
    x, family, draws = level(parents=200, width=300, feature_drop=0.3, per_seed=1)
    out = outputs(x, family, own=300)
    gather_mean(x, family, draws=draws, out=out, own=300)
    kept = (out[:, :, 300:] != 0).double()
    trials = kept[0].numel()
    sigma = (0.3 * 0.7 / trials) ** 0.5
    assert abs(kept.mean(dim=(1, 2)) - 0.7).max() < 5 * sigma
    assert abs((kept[0] * kept[1]).mean() - 0.49) < 5 * (0.49 * 0.51 / trials) ** 0.5


def test_other_memory_stays_untouched():
    x, family, draws = level()
    before = [argument.clone() for argument in (x, *family[:4])]
    table = torch.zeros(2, 30, 140)
    gather_mean(x, family, draws=draws, out=table[:, 4:27], own=70)
    assert not table[:, :4].any()
    assert not table[:, 27:].any()
    assert all(torch.equal(a, b) for a, b in zip((x, *family[:4]), before, strict=True))


def far_children(device="cpu"):
    """Children whose numbers need both words; with no edge kept, their features are not read."""
    children = torch.tensor([2**31, 2**32 - 1, 2**32, 7 << 32, (7 << 32) + 1, 2**62])
    places = torch.tensor([2**20, 2**20 + 1])
    family = Family(*(
        one.to(device) for one in (torch.tensor([1, 0]), children, torch.ones(6), places)
    ))  # fmt: skip
    draws = Draws(0.999999, 0.0, (11, 12), (13, 14))
    each = places.repeat_interleave(3)
    expected = drawn.edge_draws(each, torch.tensor([1, 1, 1, 0, 0, 0]), children, draws.edges)
    assert not any(kept(expected, view, threshold(draws.edge_drop)).any() for view in (0, 1))
    return torch.ones(2, 3, device=device), family, draws, expected


def test_numbers_of_nodes_may_need_both_words():
    x, family, draws, expected = far_children()
    found, out = torch.empty(6, dtype=torch.int64), torch.zeros(2, 2, 3)
    gather_mean(x, family, draws=draws, out=out, edges=found)
    assert torch.equal(found, expected)
    assert (out == 1).all()


@NEEDS_TRITON
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("own", "width"), [(False, 70), (True, 300)])
@pytest.mark.parametrize("kind", KINDS)
def test_triton_is_the_reference(own, width, dtype, kind):
    from graphcl.kernels import gather_mean_triton

    # A program has one parent. Nine are of three seeds, and have empty slots among their children.
    parents = 9 if INTERPRETED else 23
    x, family, draws = level(parents=parents, width=width, dtype=dtype, **KINDS[kind])
    columns = {"column": 2, "own": 2 + width if own and draws.within else None}
    ours, plain = outputs(x, family, **columns, fill=7), outputs(x, family, **columns, fill=7)
    edges = torch.empty_like(family.children)
    drawn.gather_mean(x, family, draws=draws, out=plain, edges=edges, **columns)
    ours = ours.to(TRITON_DEVICE)
    rows = [one.clone() for one in family[:2]]  # the table has them at their numbers
    there = Family(*(one.to(TRITON_DEVICE) for one in (*family[:4], *rows)))
    found = torch.empty_like(there.children)
    gather_mean_triton.gather_mean(
        x.to(TRITON_DEVICE), there, draws=draws, out=ours, edges=found, **columns
    )
    assert torch.equal(found.cpu(), edges)
    exact = dtype == torch.float32
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if exact else {"rtol": 2e-2, "atol": 1e-3}
    torch.testing.assert_close(ours.cpu(), plain, **tolerance)
    assert torch.equal(ours.cpu() == 0, plain == 0)


@NEEDS_TRITON
def test_triton_and_far_nodes():
    from graphcl.kernels import gather_mean_triton

    x, family, draws, expected = far_children(TRITON_DEVICE)
    found = torch.empty(6, dtype=torch.int64, device=TRITON_DEVICE)
    out = torch.zeros(2, 2, 3, device=TRITON_DEVICE)
    gather_mean_triton.gather_mean(x, family, draws=draws, out=out, edges=found)
    assert torch.equal(found.cpu(), expected)
    assert (out == 1).all()


@NEEDS_TRITON
def test_triton_and_edges_that_nobody_asked_for():
    from graphcl.kernels import gather_mean_triton

    x, family, draws = level(parents=4, width=20)
    there = Family(*(one.to(TRITON_DEVICE) for one in family[:4]))
    plain, ours = outputs(x, family), outputs(x, family).to(TRITON_DEVICE)
    drawn.gather_mean(x, family, draws=draws, out=plain)
    gather_mean_triton.gather_mean(x.to(TRITON_DEVICE), there, draws=draws, out=ours)
    torch.testing.assert_close(ours.cpu(), plain, rtol=1e-5, atol=1e-6)
    assert torch.equal(there.places.cpu(), family.places)  # nothing is written to them
