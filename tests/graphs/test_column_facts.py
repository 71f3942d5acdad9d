"""Facts and moments of columns against plain NumPy, for dense and sparse tables and blocks."""

import numpy as np
import pytest
import scipy.sparse
import scipy.stats

from graphcl.graphs import scaling
from graphcl.graphs.scaling import ColumnFacts, Moments, Rows


def table():
    random = np.random.default_rng(0)
    x = random.normal(2, 3, (50, 6))
    x[random.random(x.shape) < 0.4] = 0
    x[:, 1] = np.abs(x[:, 1])
    x[:, 2] = x[:, 2] > 1
    x[:, 3], x[:, 4] = 0, -np.abs(x[:, 4]) - 1
    return x.astype(np.float32)


@pytest.mark.parametrize("as_given", [np.asarray, scipy.sparse.csr_array])
@pytest.mark.parametrize("block", [1, 60, 1 << 20])
@pytest.mark.parametrize("some", [False, True])
def test_facts_and_moments(monkeypatch, as_given, block, some):
    monkeypatch.setattr(scaling, "_READ", block)
    x, nodes = table(), np.array([3, 7, 8, 20, 49])
    rows = Rows(as_given(x), nodes if some else None)
    x = (x[nodes] if some else x).astype(np.float64)
    facts = ColumnFacts.of([rows])
    assert facts.rows == rows.number == len(x)
    np.testing.assert_array_equal(facts.filled, (x != 0).sum(0))
    np.testing.assert_array_equal(facts.low, x.min(0))
    np.testing.assert_array_equal(facts.high, x.max(0))
    np.testing.assert_allclose(facts.total, x.sum(0), rtol=1e-12)
    np.testing.assert_allclose(facts.size, np.abs(x).sum(0), rtol=1e-12)
    assert facts.binary.tolist() == np.isin(x, [0, 1]).all(0).tolist()
    assert facts.whole.tolist() == (x == np.round(x)).all(0).tolist()
    columns = np.array([0, 1, 4])
    own, unit = x[:, columns], np.array([0.0, 0.3, 0.3])
    own[:, 1:] = np.sign(own[:, 1:]) * np.log1p(np.abs(own[:, 1:]) / 0.3)
    moments = Moments.of([rows], columns, unit, np.array([1.0, 1.5, -2.0]))
    np.testing.assert_allclose(moments.mean, own.mean(0), rtol=1e-9)
    np.testing.assert_allclose(moments.deviation, own.std(0), rtol=1e-9)
    wanted = scipy.stats.kurtosis(own, fisher=False)
    np.testing.assert_allclose(moments.kurtosis, wanted, rtol=1e-7)


def test_several_tables_count_as_one():
    x = table()
    parts = [Rows(x[:20]), Rows(scipy.sparse.csr_array(x[20:]))]
    for name, found in vars(ColumnFacts.of(parts)).items():
        np.testing.assert_allclose(found, getattr(ColumnFacts.of([Rows(x)]), name), rtol=1e-12)
