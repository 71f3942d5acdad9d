import pytest
import torch

from graphcl.kernels import pooled_elu as fused
from graphcl.kernels.pooled_elu import pooled_elu, pooled_elu_reference


@pytest.mark.parametrize("block_rows", [1, 12, 4096])
def test_fused_is_the_reference_value_and_gradient(monkeypatch, generator, block_rows):
    monkeypatch.setattr(fused, "BLOCK_ROWS", block_rows)
    parents, fan_out, width, dim = 9, 4, 7, 5
    inputs = torch.randn(parents * fan_out, width, generator=generator)
    child_weights = torch.rand(parents, 1, fan_out, generator=generator)
    child_weights[0, 0, 1] = 0
    weight = torch.randn(width, dim, generator=generator)
    ours, plain = weight.clone().requires_grad_(), weight.clone().requires_grad_()
    pooled = pooled_elu(inputs, ours, child_weights)
    expected = pooled_elu_reference(inputs, plain, child_weights)
    torch.testing.assert_close(pooled, expected)
    out = torch.randn(parents, dim, generator=generator)
    (pooled * out).sum().backward()
    (expected * out).sum().backward()
    torch.testing.assert_close(ours.grad, plain.grad, rtol=1e-4, atol=1e-5)
