r"""Many small logistic regressions at once: the probe of every split and strength in one batch.

A search probes thousands of embeddings, each with several splits and strengths. Fitting them one
after another with scikit-learn would take longer than the trainings. Here they are columns of one
product on the device. The objective is the probe's,

.. math:: \tfrac12 \lVert W \rVert^2 + C \sum_i \mathrm{CE}(W^\top z_i + b, \; y_i),

minimised by Nesterov's method for strongly convex functions, with the step size that each problem's
curvature allows. A test compares it with scikit-learn.
"""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

STEPS = 250


def accuracies(z: Tensor, y: Tensor, train: Tensor, strengths: Tensor) -> Tensor:
    """Returns the accuracy of each probe on the rows it was not trained on.

    Args:
        z: embeddings, ``[embeddings, rows, dim]``, float32. Each split is standardised by the rows
            that it trains on.
        y: classes, ``[rows]``.
        train: ``[splits, k]``: the rows that each split trains on.
        strengths: C, ``[strengths]``.

    Returns:
        ``[embeddings, splits, strengths]``.
    """
    many, rows, dim = z.shape
    splits, count = train.shape
    classes = int(y.max()) + 1
    given = z[:, train]
    mean, spread = given.mean(2, keepdim=True), given.std(2, correction=0, keepdim=True)
    flat = spread <= 4 * torch.finfo(z.dtype).eps * mean.abs()
    scale = torch.where(flat, torch.inf, spread)
    inputs = ((given - mean) / scale).reshape(many * splits, count, dim)
    targets = one_hot(y[train], classes).to(z.dtype).repeat(many, 1, 1)
    weights, bias = fit(inputs, targets, strengths)
    held_out = torch.ones(splits, rows, dtype=torch.bool, device=z.device)
    held_out.scatter_(1, train, False)
    scores = torch.matmul((z[:, None] - mean) / scale, weights.view(many, splits, dim, -1))
    scores = (scores + bias.view(many, splits, 1, -1)).unflatten(-1, (len(strengths), classes))
    right = (scores.argmax(-1) == y[:, None]) & held_out[:, :, None]
    return right.sum(2) / held_out.sum(1)[:, None]


def fit(inputs: Tensor, targets: Tensor, strengths: Tensor) -> tuple[Tensor, Tensor]:
    """Returns weights ``[problems, dim, strengths * classes]`` and biases ``[problems, 1, …]``."""
    problems, count, dim = inputs.shape
    classes = targets.shape[2]
    wide = (len(strengths), classes)
    # The bias is the weight of a constant column without a penalty. The column's norm is that of
    # the other columns together; with a column of ones the bias would converge slowly for small C.
    kernel = inputs @ inputs.mT
    constant = torch.linalg.matrix_norm(kernel) / count  # its square, [problems]
    # Cross entropy's curvature is at most 1/2. The Frobenius norm bounds the kernel without an SVD.
    top = torch.linalg.matrix_norm(kernel + constant[:, None, None])
    curvature = 1 + 0.5 * strengths * top[:, None]  # [problems, strengths]
    root = curvature.sqrt()
    step = (1 / curvature)[:, None, :, None]
    momentum = ((root - 1) / (root + 1))[:, None, :, None]
    strength, constant = strengths[None, None, :, None], constant[:, None, None, None]
    weights = inputs.new_zeros(problems, dim, *wide)
    bias = inputs.new_zeros(problems, 1, *wide)
    ahead, ahead_bias = weights, bias
    for _ in range(STEPS):
        scores = (inputs @ ahead.flatten(2)).unflatten(-1, wide) + ahead_bias
        error = strength * (scores.softmax(-1) - targets[:, :, None])
        slope = (inputs.mT @ error.flatten(2)).unflatten(-1, wide) + ahead
        new = ahead - step * slope
        new_bias = ahead_bias - step * constant * error.sum(1, keepdim=True)
        ahead, ahead_bias = (
            new + momentum * (new - weights),
            new_bias + momentum * (new_bias - bias),
        )
        weights, bias = new, new_bias
    return weights.flatten(2), bias.flatten(2)
