import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
import torch

from graphcl.kernels import features
from graphcl.kernels.features import (
    SparseFeatures,
    is_faster,
    linear,
    product,
    stable_product,
    transposed_product,
)

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("two_threads")


def test_sparse_linear_is_the_dense_product_value_and_gradient(generator):
    matrix = scipy.sparse.random_array((7, 9), density=0.3, rng=np.random.default_rng(0)).tocsr()
    x = SparseFeatures.from_csr(matrix, device=CPU, dtype=torch.float64)
    weight = torch.randn(9, 4, dtype=torch.float64, generator=generator)
    ours, dense = weight.clone().requires_grad_(), weight.clone().requires_grad_()
    torch.testing.assert_close(x.to_dense(), torch.tensor(matrix.toarray()))
    product, expected = linear(x, ours), torch.tensor(matrix.toarray()) @ dense
    torch.testing.assert_close(product, expected)
    product.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(ours.grad, dense.grad)


def test_a_product_differentiates_what_needs_it(generator):
    h = torch.randn(5, 3, generator=generator)
    weight = torch.randn(3, 2, generator=generator).requires_grad_()
    product(h, weight).square().sum().backward()
    torch.testing.assert_close(weight.grad, 2 * h.T @ (h @ weight.detach()))
    inputs = h.clone().requires_grad_()
    product(inputs, weight).square().sum().backward()
    torch.testing.assert_close(inputs.grad, 2 * (h @ weight.detach()) @ weight.detach().T)


def sparse(rows, columns, *, seed=0, density=0.2):
    random = np.random.default_rng(seed)
    matrix = scipy.sparse.random_array(
        (rows, columns), density=density, rng=random, dtype=np.float32, format="csr"
    )
    matrix.sort_indices()
    return matrix


def tensors(matrix):
    index = (torch.from_numpy(part.astype(np.int64)) for part in (matrix.indptr, matrix.indices))
    return *index, torch.from_numpy(matrix.data)


@pytest.mark.parametrize(
    ("rows", "columns", "width"), [(1, 1, 1), (7, 5, 3), (40, 30, 129), (3, 50, 2), (60, 9, 64)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_transposed_product_is_scipys(rows, columns, width, dtype):
    matrix = sparse(rows, columns)
    dense = torch.randn(rows, width, dtype=dtype)
    indptr, indices, values = tensors(matrix)
    found = transposed_product(indptr, indices, values.to(dtype), dense, columns)
    assert found.shape == (columns, width)
    assert found.dtype == dtype
    expected = matrix.astype(np.float64).T @ dense.double().numpy()
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)


def test_bits_do_not_depend_on_cores_nor_on_the_order_in_memory(monkeypatch):
    arguments = (*tensors(sparse(200, 50)), torch.randn(200, 90), 50)
    many = transposed_product(*arguments)
    monkeypatch.setattr(features, "_slabs", lambda: 3)
    assert torch.equal(transposed_product(*arguments), many)
    monkeypatch.setattr(features, "_slabs", lambda: 1)
    assert torch.equal(transposed_product(*arguments), many)
    across = arguments[3].T.contiguous().T  # the same values, column by column
    assert torch.equal(transposed_product(*arguments[:3], across, 50), many)


def test_zeros_that_are_stored_add_nothing():
    indptr, indices, values = tensors(sparse(20, 10))
    dense = torch.full((20, 4), torch.inf)
    assert torch.equal(
        transposed_product(indptr, indices, torch.zeros_like(values), dense, 10),
        torch.zeros(10, 4),
    )


def test_the_gradient_is_the_same_both_ways(monkeypatch):
    x = SparseFeatures.from_csr(sparse(30, 20), device=CPU)
    outer = torch.randn(30, 8)
    gradients = []
    for answer in (True, False):
        monkeypatch.setattr(features, "is_faster", lambda *_, answer=answer: answer)
        weight = torch.ones(20, 8, requires_grad=True)
        (linear(x, weight) * outer).sum().backward()
        gradients.append(weight.grad)
    torch.testing.assert_close(*gradients)


def test_the_transposed_product_is_for_few_cores_and_tables_that_fit(monkeypatch):
    cora = (98_432, 1_433, 512, torch.float32)
    monkeypatch.setattr(features, "_slabs", lambda: 2)
    assert is_faster(*cora)
    assert not is_faster(100, *cora[1:])  # too little to do
    assert not is_faster(98_432, 50_000, 512, torch.float32)  # 51 MB a core
    monkeypatch.setattr(features, "_slabs", lambda: 64)
    assert not is_faster(*cora)  # slabs of 8 columns


def test_who_asks_for_one_thread_gets_no_others():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert not is_faster(98_432, 1_433, 512, torch.float32)
    finally:
        torch.set_num_threads(before)


def test_torch_keeps_the_threads_that_it_was_given():
    """Numba sets OpenMP's number of threads when it starts its own, in a process that has none."""
    code = """
import torch
torch.set_num_threads(1)
import numpy as np
from graphcl import Graph, GraphCL
random = np.random.default_rng(0)
graph = Graph.from_edge_index(random.integers(0, 80, (2, 300)), random.normal(size=(80, 12)))
first, second = (GraphCL(dim=8, epochs=2, device="cpu").fit_transform(graph) for _ in range(2))
assert torch.get_num_threads() == 1
assert np.array_equal(first, second)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("width", [1, 3, 6, 11, 13, 64, 100])
@pytest.mark.parametrize("depth", [1, 6, 11, 12, 37, 200])
def test_a_row_has_the_same_bits_wherever_it_stands(depth, width, generator):
    x = torch.randn(500, depth, generator=generator)
    weight = torch.randn(depth, width, generator=generator)
    whole = stable_product(x, weight)
    torch.testing.assert_close(whole.double(), x.double() @ weight.double(), rtol=1e-4, atol=1e-4)
    for start, count in ((0, 1), (3, 1), (5, 64), (7, 130), (499, 1)):
        some = stable_product(x[start : start + count].clone(), weight)
        assert torch.equal(some, whole[start : start + count])
