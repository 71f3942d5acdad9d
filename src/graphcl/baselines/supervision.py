"""Loss, score and prediction where a node has one class and where it has several labels."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from graphcl.baselines.protocol import Labels
from graphcl.graphs.validation import IntArray


def targets(y: IntArray, device: torch.device) -> Tensor:
    """Returns class numbers as int64, several labels per node as float32."""
    tensor = torch.tensor(y, device=device)
    return tensor.float() if tensor.ndim == 2 else tensor.long()


def supervised_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Returns cross-entropy, or its mean over all pairs of node and label."""
    if y.ndim == 2:
        return binary_cross_entropy_with_logits(logits, y)
    return cross_entropy(logits, y)


def score(logits: Tensor, y: Tensor) -> float:
    """Returns the accuracy, or micro-F1 where a label is given above probability 0.5."""
    if y.ndim == 1:
        return float((logits.argmax(1) == y).float().mean())
    given = logits > 0
    hits = (given & (y > 0)).sum()
    return float(2 * hits / (given.sum() + (y > 0).sum()).clamp(min=1))


def predicted(logits: Tensor, *, several: bool) -> Labels:
    """Returns class numbers ``[nodes]``, or 0/1 labels ``[nodes, labels]``."""
    answer = (logits > 0).long() if several else logits.argmax(1)
    array: Labels = answer.cpu().numpy().astype(np.int64)
    return array


def drop_values(h: Tensor, rate: float, generator: torch.Generator) -> Tensor:
    """Returns `h` after dropout, drawn by `generator` on the device of `h`."""
    if rate == 0:
        return h
    keep = torch.rand(h.shape, generator=generator, device=h.device) >= rate
    return h * keep / (1 - rate)
