"""The rivals of the speed tables, in plain code.

Public implementations of node-level contrastive learning (GRACE and its successors, PyGCL) keep
the whole similarity matrix under autograd. These functions do the same for this method's loss, with
PyTorch Geometric's message passing for the encoder.
"""

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, dropout, elu, normalize
from torch_geometric.nn import SimpleConv
from torch_geometric.utils import dropout_edge

from graphcl.encoders.paper import MeanPoolingEncoder
from graphcl.graphs.graph import Graph
from graphcl.recipes import Recipe


def dense_loss(h1: Tensor, h2: Tensor, temperature: float) -> Tensor:
    """Returns NT-Xent with the 2N × 2N similarity matrix under autograd."""
    z = normalize(torch.cat([h1, h2]))
    similarity = (z @ z.T / temperature).fill_diagonal_(-torch.inf)
    targets = torch.arange(len(z), device=z.device).roll(len(h1))
    return 2 * cross_entropy(similarity, targets)


def chunked_gradient(h1: Tensor, h2: Tensor, temperature: float, *, chunk: int = 4096) -> None:
    """Backpropagates NT-Xent `chunk` rows at a time, so that only one chunk's matrix is kept."""
    z = normalize(torch.cat([h1, h2]))
    leaf = z.detach().requires_grad_()
    targets = torch.arange(len(z), device=z.device).roll(len(h1))
    for first in range(0, len(z), chunk):
        similarity = leaf[first : first + chunk] @ leaf.T / temperature
        own = torch.arange(len(similarity), device=z.device)
        similarity[own, own + first] = -torch.inf
        loss = cross_entropy(similarity, targets[first : first + chunk], reduction="sum")
        (loss / len(h1)).backward()
    torch.autograd.grad(z, (h1, h2), leaf.grad)


def pygcl_loss(temperature: float) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Returns PyGCL's own loss with negatives of both views (half of ours), or None without PyGCL.

    PyGCL (``pip install --no-deps PyGCL``) imports DGL, torch_sparse and torch_scatter, but its
    loss uses none of them. Empty modules replace those that are missing.
    """
    if importlib.util.find_spec("GCL") is None:
        return None
    unused = {
        "dgl": {"DGLGraph": object},
        "torch_sparse": {"SparseTensor": object, "coalesce": None},
        "torch_scatter": {"scatter": None},
    }
    for name, members in unused.items():
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            sys.modules[name] = module = ModuleType(name)
            vars(module).update(members)
    from GCL.losses import InfoNCE
    from GCL.models import DualBranchContrast

    return DualBranchContrast(InfoNCE(tau=temperature), mode="L2L", intraview_negs=True)


def pyg_encoder(
    graph: Graph, recipe: Recipe, device: str
) -> tuple[MeanPoolingEncoder, Callable[[], Tensor]]:
    """Returns our encoder, and a function that encodes a new view with its weights through PyG.

    PyG's `dropout_edge` drops edges, and its message passing pools them. Features are dense.
    """
    data = graph.to_pyg().to(device)
    encoder = MeanPoolingEncoder(
        graph.num_features, dim=recipe.dim, layers=recipe.layers, generator=torch.Generator()
    ).to(device)
    pool = SimpleConv(aggr="mean", combine_root="self_loop")

    def encode() -> Tensor:
        edges, _ = dropout_edge(data.edge_index, p=recipe.edge_drop, force_undirected=True)
        weights = list(encoder.weights)
        h = pool(dropout(data.x, recipe.feature_drop) @ weights[0], edges)
        for weight in weights[1:]:
            h = pool(elu(h), edges) @ weight
        return elu(h) if len(weights) == 1 else h

    return encoder, encode


def dense_training(graph: Graph, recipe: Recipe, device: str) -> None:
    """Trains with the dense loss and PyG, on all nodes or on `batch_nodes` of them at a time."""
    encoder, encode = pyg_encoder(graph, recipe, device)
    adam = torch.optim.Adam(encoder.parameters(), lr=recipe.learning_rate)
    batch = recipe.batch_nodes or graph.num_nodes
    for _ in range(recipe.epochs):
        for nodes in torch.randperm(graph.num_nodes, device=device).split(batch):
            h1, h2 = encode(), encode()
            if batch < graph.num_nodes:
                h1, h2 = h1[nodes], h2[nodes]
            loss = dense_loss(h1, h2, recipe.temperature)
            adam.zero_grad()
            loss.backward()
            adam.step()
            loss.item()  # public implementations print it
