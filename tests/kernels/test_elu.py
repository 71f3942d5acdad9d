import pytest
import torch
from torch.nn.functional import elu

from graphcl.kernels import elu as module
from graphcl.kernels.elu import elu_


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (7, 5), (300, 33)])
def test_it_is_torchs(shape, dtype, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", 1000)
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(shape, dtype=dtype, generator=generator) * 10
    expected = elu(h)
    found = elu_(h)
    assert found is h
    torch.testing.assert_close(found, expected, rtol=0, atol=torch.finfo(dtype).eps)


def test_the_ends_of_the_line():
    h = torch.tensor([-torch.inf, -1e30, -1e-12, -0.0, 0.0, 1e-12, 1e30, torch.inf, torch.nan])
    torch.testing.assert_close(elu_(h.clone()), elu(h), rtol=0, atol=1e-7, equal_nan=True)
