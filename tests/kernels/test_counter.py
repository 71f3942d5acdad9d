import numpy as np
import pytest
import scipy.stats
import torch

from graphcl.kernels.counter import draw, kept, stream_key, threshold


def test_keys_name_independent_streams():
    counter = torch.arange(100_000)
    first, second = (draw(counter, stream_key(0, name)) for name in ("a", "b"))
    assert int(first.min()) >= 0
    assert int(first.max()) < 2**32
    for draws in (first, first ^ second, (first - first.roll(1)) & 0xFFFFFFFF):
        counts = np.bincount(draws >> 24, minlength=256)
        assert scipy.stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.999999])
def test_thresholds_meet_their_probability(probability):
    draws = draw(torch.arange(200_000), stream_key(3, "x"))
    for view in (0, 1):
        rate = kept(draws, view, threshold(probability)).double().mean()
        assert abs(rate - (1 - probability)) < 5 * 0.5 / 200_000**0.5
    assert threshold(probability) < 65536
