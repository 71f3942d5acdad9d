import numpy as np
import scipy.sparse
import torch

from graphcl.kernels.features import SparseFeatures, linear, product

CPU = torch.device("cpu")


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
