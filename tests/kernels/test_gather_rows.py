import pytest
import torch

from graphcl.kernels.counter import stream_key
from graphcl.kernels.gather_rows import gather_rows, gather_rows_reference


@pytest.mark.parametrize("feature_drop", [0.0, 0.4])
def test_the_compiled_loop_is_the_plain_one(feature_drop):
    random = torch.Generator().manual_seed(0)
    x = torch.randn(20, 7, generator=random)
    children = torch.randint(20, (30,), generator=random)
    weights = torch.rand(2, 30, generator=random) * (torch.rand(2, 30, generator=random) < 0.7)
    places = torch.arange(10) // 2
    options = {"feature_drop": feature_drop, "key": stream_key(3, "features", "a")}
    wide, expected = torch.zeros(2, 10, 20), torch.empty(2, 10, 7)
    found = wide[:, :, 5:12]
    gather_rows(x, children, weights, places, **options, out=found)
    gather_rows_reference(x, children, weights, places, **options, out=expected)
    torch.testing.assert_close(found, expected)
    assert not wide[:, :, :5].any()
    assert not wide[:, :, 12:].any()
    if feature_drop == 0:
        plain = (weights[0].view(10, 3, 1) * x[children].view(10, 3, 7)).sum(1)
        torch.testing.assert_close(found[0], plain)


def test_a_node_has_the_same_features_wherever_it_occurs_in_a_tree():
    x, ones = torch.ones(5, 400), torch.ones(2, 4)
    nodes, places = torch.tensor([2, 2, 2, 3]), torch.tensor([0, 0, 1, 0])
    first, second = out = torch.empty(2, 4, 400)
    options = {"feature_drop": 0.5, "key": stream_key(0, "features"), "out": out}
    gather_rows(x, nodes, ones, places, **options)
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])
    assert not torch.equal(first[0], first[3])
    assert not torch.equal(first[0], second[0])
    assert abs(float((first == 0).float().mean()) - 0.5) < 0.06
    assert set(first.unique().tolist()) == {0.0, 2.0}
