"""The transform of columns: its formula against plain loops, and compiled rows against it."""

import math

import numpy as np
import pytest
import scipy.sparse
import torch

from graphcl.kernels.features import SparseFeatures
from graphcl.kernels.stored_features import ColumnTransform, StoredFeatures, mean_of_neighbourhoods

ROWS, COLUMNS = 30, 12
INFINITE = math.inf


def transform(shift=True):
    """Three columns each: words, logarithms, numbers, and columns that are left."""
    random = torch.Generator().manual_seed(0)
    kind = torch.arange(COLUMNS) // 3
    drawn = torch.randn(2, COLUMNS, generator=random)
    return ColumnTransform(
        words=kind == 0,
        unit=torch.where(kind == 1, 0.5, 0.0),
        shift=torch.where((kind == 1) | (kind == 2), drawn[0], 0.0) * shift,
        factor=torch.where(kind == 3, 1.0, drawn[1].abs() + 0.5),
        limit=torch.where((kind == 1) | (kind == 2), 2.0, INFINITE),
    )


def table():
    random = torch.Generator().manual_seed(1)
    x = 3 * torch.randn(ROWS, COLUMNS, generator=random)
    x[:, :3] = (x[:, :3] > 1).float()
    x[x.abs() < 0.5] = 0
    return x


def expected(x, t):
    out = np.zeros(x.shape)
    for i in range(ROWS):
        total = math.hypot(*(float(v) for v, word in zip(x[i], t.words, strict=True) if word))
        for j in range(COLUMNS):
            value, unit, limit = float(x[i, j]), float(t.unit[j]), float(t.limit[j])
            if t.words[j]:
                value = value / total if total else value
            elif unit:
                value = math.copysign(math.log(1 + abs(value) / unit), value)
            value = (value - float(t.shift[j])) * float(t.factor[j])
            out[i, j] = min(max(value, -limit), limit)
    return out


def test_rows_follow_the_formula():
    x, t = table(), transform()
    assert t.has_words
    assert not t.keeps_zeros
    found = t(x, t.divisors(x))
    np.testing.assert_allclose(found, expected(x, t), rtol=1e-5, atol=1e-6)
    assert float(found[:, 3:9].abs().max()) == 2  # something was clipped


def test_the_entries_of_a_sparse_table_follow_the_formula():
    x, t = table(), transform(shift=False)
    assert t.keeps_zeros
    sparse = SparseFeatures.from_csr(scipy.sparse.csr_array(x.numpy()), device=x.device)
    rows = torch.repeat_interleave(torch.arange(ROWS), sparse.indptr.diff())
    values = t.entries(sparse.values, sparse.indices, t.divisors(x)[rows])
    found = sparse.with_values(values).to_dense()
    np.testing.assert_allclose(found, expected(x, t), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16])
@pytest.mark.parametrize("divided", [False, True])
def test_compiled_loops_read_the_rows_that_the_formula_gives(kind, divided):
    divisor = torch.arange(1.0, ROWS + 1) if divided else None
    stored = StoredFeatures(table().to(kind), divisor)
    whole = stored.to_dense(torch.device("cpu"))
    changed = stored.with_transform(transform())
    wanted = torch.tensor(expected(whole, transform()), dtype=torch.float32)
    torch.testing.assert_close(changed.to_dense(wanted.device), wanted, rtol=1e-5, atol=1e-5)
    indptr = torch.arange(0, 3 * ROWS + 1, 3)
    indices = torch.randint(0, ROWS, (3 * ROWS,), generator=torch.Generator().manual_seed(2))
    nodes = torch.arange(ROWS)
    ours = mean_of_neighbourhoods(changed, indptr, indices, nodes)
    theirs = mean_of_neighbourhoods(StoredFeatures(wanted), indptr, indices, nodes)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
