"""The recorded loss against the eager one; all but one need a GPU."""

import pytest
import torch

from graphcl.kernels import recording
from graphcl.losses import nt_xent

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def test_nothing_is_recorded_on_a_cpu():
    def never(h):
        raise AssertionError

    for _ in range(recording.EAGER_CALLS + 2):
        assert recording.replay(never, (torch.ones(4, 2),)) is None


@pytest.fixture
def fresh(monkeypatch):
    monkeypatch.setattr(recording, "_calls", {})
    monkeypatch.setattr(recording, "_recordings", type(recording._recordings)())


def views(seed, nodes=300, dim=40):
    generator = torch.Generator("cuda").manual_seed(seed)
    return [
        torch.randn(nodes, dim, device="cuda", generator=generator, requires_grad=True)
        for _ in range(2)
    ]


def value_and_gradients(h1, h2, temperature=0.5, precision="float32"):
    loss = nt_xent(h1, h2, temperature, precision=precision)
    return (loss, *torch.autograd.grad(3 * loss, (h1, h2)))


@needs_gpu
def test_a_replay_gives_what_a_call_gives(fresh):
    pairs = [views(seed) for seed in range(recording.EAGER_CALLS + 3)]
    found = [value_and_gradients(*pair) for pair in pairs]
    assert len(recording._recordings) == 1
    for pair, ours in zip(pairs, found, strict=True):
        recording._calls.clear()
        recording._recordings.clear()
        for one, other in zip(ours, value_and_gradients(*pair), strict=True):
            # The factor of the loss enters at the end rather than on the way.
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


@needs_gpu
def test_results_outlive_the_next_replay(fresh):
    first, second = views(0), views(1)
    for _ in range(recording.EAGER_CALLS + 1):
        value_and_gradients(*first)
    loss = nt_xent(*first, 0.5, precision="float32")
    value = loss.item()
    other = nt_xent(*second, 0.5, precision="float32")
    assert loss.item() == value != other.item()
    once = torch.autograd.grad(loss, first[0], retain_graph=True)[0]
    twice = torch.autograd.grad(loss, first[0])[0]
    torch.testing.assert_close(once, twice, rtol=0, atol=0)


@needs_gpu
def test_few_recordings_are_kept(fresh):
    for nodes in (100, 200, 300, 400):
        for _ in range(recording.EAGER_CALLS + 1):
            value_and_gradients(*views(0, nodes=nodes))
    assert len(recording._recordings) == recording.KEPT


@needs_gpu
def test_a_change_of_temperature_is_another_recording(fresh):
    h1, h2 = views(0)
    for _ in range(recording.EAGER_CALLS + 2):
        warm, cool = (nt_xent(h1, h2, t, precision="float32").item() for t in (1.0, 0.2))
    recording._recordings.clear()
    assert nt_xent(h1, h2, 1.0, precision="float32").item() == warm
    assert nt_xent(h1, h2, 0.2, precision="float32").item() == cool
