import pytest
import torch
from torch.nn.functional import elu

from graphcl.kernels import elu as module
from graphcl.kernels.elu import elu_, pooled_elu


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (7, 5), (300, 33)])
def test_elu_equals_torchs(shape, dtype, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", 1000)
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(shape, dtype=dtype, generator=generator) * 10
    expected = elu(h)
    found = elu_(h)
    assert found is h
    torch.testing.assert_close(found, expected, rtol=0, atol=torch.finfo(dtype).eps)


def test_extreme_values():
    h = torch.tensor([-torch.inf, -1e30, -1e-12, -0.0, 0.0, 1e-12, 1e30, torch.inf, torch.nan])
    torch.testing.assert_close(elu_(h.clone()), elu(h), rtol=0, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("block_rows", [1, 12, 4096])
def test_fused_is_the_reference_value_and_gradient(monkeypatch, generator, block_rows):
    monkeypatch.setattr(module, "BLOCK_ROWS", block_rows)
    parents, fan_out, width, dim = 9, 4, 7, 5
    inputs = torch.randn(parents * fan_out, width, generator=generator)
    child_weights = torch.rand(parents, 1, fan_out, generator=generator)
    child_weights[0, 0, 1] = 0
    weight = torch.randn(width, dim, generator=generator)
    ours, plain = weight.clone().requires_grad_(), weight.clone().requires_grad_()
    pooled = pooled_elu(inputs, ours, child_weights)
    h = torch.nn.functional.elu(inputs @ plain)
    expected = (child_weights @ h.view(parents, fan_out, dim))[:, 0]
    torch.testing.assert_close(pooled, expected)
    out = torch.randn(parents, dim, generator=generator)
    (pooled * out).sum().backward()
    (expected * out).sum().backward()
    torch.testing.assert_close(ours.grad, plain.grad, rtol=1e-4, atol=1e-5)
