"""Inference: embeddings of every node of a graph, without perturbation."""

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from graphcl.kernels.csr import Adjacency, Features


@torch.no_grad()
def embed(encoder: nn.Module, x: Features, adjacency: Adjacency) -> npt.NDArray[np.float32]:
    """Returns ``encoder(x, adjacency)`` as a NumPy array, ``[num_nodes, dim]``."""
    encoder.eval()
    return encoder(x, adjacency).float().cpu().numpy()  # type: ignore[no-any-return]
