"""The fused means against plain tensor operations; the Triton kernel through its interpreter.

The interpreter must be on before triton is first imported, so it gets its own process.
"""

import os
import subprocess
import sys

import pytest
import torch

from graphcl.kernels import gather_mean as fused
from graphcl.kernels.counter import edge_draws, kept, stream_key, threshold
from graphcl.kernels.gather_mean import Draws, Held, gather_mean, gather_mean_reference

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
TRITON_DEVICE = "cpu" if INTERPRETED else "cuda"


def level(*, parents=23, fan_out=5, width=70, edge_drop=0.2, feature_drop=0.4, dtype=None):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, width, generator=generator).to(dtype or torch.float32)
    weight = torch.rand(parents * fan_out, generator=generator) + 0.5
    weight[::7] = 0  # empty slots
    keys = stream_key(3, "a"), stream_key(3, "b")
    draws = Draws(edge_drop, feature_drop, *keys, first=7, per_seed=4)
    above = torch.randint(40, (parents,), generator=generator)
    below = torch.randint(40, (parents * fan_out,), generator=generator)
    return (x, above, below, weight), draws


def outputs(arguments, *, own, fill=float("nan")):
    x, parents = arguments[:2]
    return torch.full((2, len(parents), x.shape[1] * (1 + own)), fill, dtype=x.dtype)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("edge_drop", "feature_drop"), [(0, 0), (0.2, 0.4), (0.9, 0.9)])
def test_fused_is_the_reference(own, edge_drop, feature_drop):
    arguments, draws = level(edge_drop=edge_drop, feature_drop=feature_drop)
    ours, plain = outputs(arguments, own=own), outputs(arguments, own=own)
    edges, plain_edges = torch.empty_like(arguments[2]), torch.empty_like(arguments[2])
    gather_mean(*arguments, draws=draws, out=ours, edges=edges)
    gather_mean_reference(*arguments, draws=draws, out=plain, edges=plain_edges)
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)
    assert torch.equal(ours == 0, plain == 0)  # the same bits decide
    assert torch.equal(edges, plain_edges)
    again = outputs(arguments, own=own)
    gather_mean(*arguments, draws=draws, out=again)
    assert torch.equal(again, ours)  # asked for or not, the same edges are there


def test_a_table_of_a_trees_nodes_alone_gives_the_same_means():
    """Rows from elsewhere, and seed nodes whose places do not follow one another."""
    (x, above, below, weight), draws = level(parents=24)
    whole = outputs((x, above), own=True)
    gather_mean(x, above, below, weight, draws=draws, out=whole)
    nodes = torch.unique(torch.cat([above, below])).flip(0)
    row = torch.full((40,), -1)
    row[nodes] = torch.arange(len(nodes))
    seeds = torch.tensor([3, 0, 5])  # of six, with four parents each
    some = (seeds[:, None] * 4 + torch.arange(4)).view(-1)
    children = below.view(-1, 5)[some].reshape(-1)
    arguments = (x[nodes], above[some], children, weight.view(-1, 5)[some].reshape(-1))
    held = Held(row[above[some]], row[children], seeds + draws.first)
    ours = outputs(arguments, own=True)
    gather_mean(*arguments, draws=draws._replace(first=0), out=ours, held=held)
    assert torch.equal(ours, whole[:, some])
    plain = outputs(arguments, own=True)
    gather_mean_reference(*arguments, draws=draws._replace(first=0), out=plain, held=held)
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


def test_reference_in_chunks(monkeypatch):
    arguments, draws = level()
    whole, chunked = outputs(arguments, own=True), outputs(arguments, own=True)
    edges = torch.empty(2, len(arguments[2]), dtype=torch.int64)
    gather_mean_reference(*arguments, draws=draws, out=whole, edges=edges[0])
    monkeypatch.setattr(fused, "CHUNK_ELEMENTS", 900)
    gather_mean_reference(*arguments, draws=draws, out=chunked, edges=edges[1])
    torch.testing.assert_close(whole, chunked)
    assert torch.equal(*edges)


def test_without_perturbation_it_is_the_weighted_mean():
    arguments, draws = level(edge_drop=0.0, feature_drop=0.0)
    x, parents, children, weight = arguments
    out = outputs(arguments, own=True)
    gather_mean(*arguments, draws=draws, out=out)
    for row in range(len(parents)):
        below = slice(row * 5, row * 5 + 5)
        total = x[parents[row]] + (weight[below, None] * x[children[below]]).sum(0)
        torch.testing.assert_close(out[0, row, :70], total / (1 + weight[below].sum()))
        torch.testing.assert_close(out[1, row, 70:], x[parents[row]])


def test_views_are_independent_and_drop_at_the_stated_rate():
    arguments, draws = level(parents=200, width=300, feature_drop=0.3)
    draws = draws._replace(per_seed=1)  # a node that occurs twice in a tree is one node
    out = outputs(arguments, own=True)
    gather_mean(*arguments, draws=draws, out=out)
    kept = (out[:, :, 300:] != 0).double()
    trials = kept[0].numel()
    sigma = (0.3 * 0.7 / trials) ** 0.5
    assert abs(kept.mean(dim=(1, 2)) - 0.7).max() < 5 * sigma
    assert abs((kept[0] * kept[1]).mean() - 0.49) < 5 * (0.49 * 0.51 / trials) ** 0.5


def test_other_memory_stays_untouched():
    arguments, draws = level()
    before = [argument.clone() for argument in arguments]
    table = torch.zeros(2, 30, 140)
    gather_mean(*arguments, draws=draws, out=table[:, 4:27])
    assert not table[:, :4].any()
    assert not table[:, 27:].any()
    assert all(torch.equal(a, b) for a, b in zip(arguments, before, strict=True))


def far_children(device="cpu"):
    """Children whose numbers need both words; with no edge kept, their features are not read."""
    children = torch.tensor([2**31, 2**32 - 1, 2**32, 7 << 32, (7 << 32) + 1, 2**62])
    arguments = torch.ones(2, 3), torch.tensor([1, 0]), children, torch.ones(6)
    draws = Draws(0.999999, 0.0, (11, 12), (13, 14), first=2**20, per_seed=1)
    places = torch.tensor([2**20] * 3 + [2**20 + 1] * 3)
    expected = edge_draws(places, torch.tensor([1, 1, 1, 0, 0, 0]), children, draws.edges)
    assert not any(kept(expected, view, threshold(draws.edge_drop)).any() for view in (0, 1))
    return [argument.to(device) for argument in arguments], draws, expected


def test_numbers_of_nodes_may_need_both_words():
    arguments, draws, expected = far_children()
    found, out = torch.empty(6, dtype=torch.int64), torch.zeros(2, 2, 3)
    gather_mean(*arguments, draws=draws, out=out, edges=found)
    assert torch.equal(found, expected)
    assert (out == 1).all()


@pytest.mark.skipif(INTERPRETED or torch.cuda.is_available(), reason="the kernel runs right here")
def test_triton_under_the_interpreter():
    pytest.importorskip("triton", reason="triton is not installed")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command += ["-k", "test_triton_is or test_triton_and"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("own", "width"), [(False, 70), (True, 300)])
def test_triton_is_the_reference(own, width, dtype):
    from graphcl.kernels import gather_mean_triton

    # A program has one parent. Nine are of three seeds, and have empty slots among their children.
    arguments, draws = level(parents=9 if INTERPRETED else 23, width=width, dtype=dtype)
    ours, plain = outputs(arguments, own=own), outputs(arguments, own=own)
    edges = torch.empty_like(arguments[2])
    gather_mean_reference(*arguments, draws=draws, out=plain, edges=edges)
    ours = ours.to(TRITON_DEVICE)
    there = [argument.to(TRITON_DEVICE) for argument in arguments]
    found = torch.empty_like(there[2])
    gather_mean_triton.gather_mean(*there, draws=draws, out=ours, edges=found)
    assert torch.equal(found.cpu(), edges)
    exact = dtype == torch.float32
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if exact else {"rtol": 2e-2, "atol": 1e-3}
    torch.testing.assert_close(ours.cpu(), plain, **tolerance)
    assert torch.equal(ours.cpu() == 0, plain == 0)


@pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="needs a GPU")
def test_triton_and_far_nodes():
    from graphcl.kernels import gather_mean_triton

    arguments, draws, expected = far_children(TRITON_DEVICE)
    found = torch.empty(6, dtype=torch.int64, device=TRITON_DEVICE)
    out = torch.zeros(2, 2, 3, device=TRITON_DEVICE)
    gather_mean_triton.gather_mean(*arguments, draws=draws, out=out, edges=found)
    assert torch.equal(found.cpu(), expected)
    assert (out == 1).all()


@pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="needs a GPU")
def test_triton_and_edges_that_nobody_asked_for():
    from graphcl.kernels import gather_mean_triton

    arguments, draws = level(parents=4, width=20)
    there = [argument.to(TRITON_DEVICE) for argument in arguments]
    plain, ours = outputs(arguments, own=False), outputs(arguments, own=False).to(TRITON_DEVICE)
    gather_mean_reference(*arguments, draws=draws, out=plain)
    gather_mean_triton.gather_mean(*there, draws=draws, out=ours)
    torch.testing.assert_close(ours.cpu(), plain, rtol=1e-5, atol=1e-6)
    assert torch.equal(there[2].cpu(), arguments[2])  # nothing is written to them
