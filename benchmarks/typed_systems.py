"""Systems on typed graphs, for `benchmarks.typed`: ours, and what it is compared with.

An embedding takes a graph and returns rows for one type; a supervised system returns class scores.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, elu

from graphcl import GraphCL, Recipe
from graphcl.graphs.conversion import offsets
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import prepare
from graphcl.kernels.adjacency import mean_pool
from graphcl.kernels.features import Features, linear

Rows = npt.NDArray[np.float32]
Split = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]  # training and validation nodes
Embed = Callable[[Graph, str, int, torch.device, Mapping[str, Any]], tuple[Rows, Any]]


def typed(
    graph: Graph, name: str, seed: int, device: torch.device, settings: Mapping[str, Any]
) -> tuple[Rows, Any]:
    """GraphCL on the typed graph."""
    model = GraphCL(Recipe(**settings), seed=seed, device=str(device))
    return model.fit(graph).transform(graph, node_type=name), model


def flattened(
    graph: Graph, name: str, seed: int, device: torch.device, settings: Mapping[str, Any]
) -> tuple[Rows, Any]:
    """GraphCL on the plain graph that forgets types and directions."""
    model = GraphCL(Recipe(**settings), seed=seed, device=str(device))
    plain, start = graph.flatten(), offsets(graph)[name]
    z = model.fit(plain).transform(plain)
    return z[start : start + graph.nodes[name].num_nodes], model


def raw(
    graph: Graph, name: str, seed: int, device: torch.device, settings: Mapping[str, Any]
) -> tuple[Rows, Any]:
    """The features of the type, scaled as in training."""
    del seed, device, settings
    x = prepare([graph], "auto")[0].tensors(torch.device("cpu"))[0][name]
    return (x if isinstance(x, torch.Tensor) else x.to_dense()).numpy(), None


@torch.no_grad()
def propagation(
    graph: Graph, name: str, seed: int, device: torch.device, settings: Mapping[str, Any]
) -> tuple[Rows, Any]:
    """Features, their means over relations, and the means of these, side by side; no training.

    The features of each type are first projected to one width by a random matrix. A hop is the mean
    over all directions of relations in which a type receives: no meta-path is chosen.
    """
    width = int(settings.get("dim", 768)) // 3
    (prepared,) = prepare([graph], "auto")
    x, relations = prepared.tensors(device)
    random = torch.Generator().manual_seed(seed)
    h = {}
    for kind, table in x.items():
        shape = (prepared.schema.widths[kind], width)
        matrix = torch.randn(shape, generator=random).to(device) / width**0.5
        h[kind] = linear(table, matrix)
    parts = []
    for _ in range(3):
        rows = h[name] - h[name].mean(0)
        parts.append(rows / rows.square().sum(1).mean().sqrt())
        above = {}
        for kind in h:
            means = [
                mean_pool(h[one.sender], relations[one.relation].toward(one.backwards))
                for one in prepared.schema.into(kind)
            ]
            above[kind] = torch.stack(means).mean(0) if means else h[kind]
        h = above
    return torch.cat(parts, 1).cpu().numpy(), None


EMBEDDINGS: dict[str, Embed] = {
    "typed": typed,
    "flattened": flattened,
    "raw": raw,
    "propagation": propagation,
}


class _Supervised(nn.Module):
    """A linear map per type, then two layers of R-GCN or HGT of PyG, then classes."""

    def __init__(self, kind: str, prepared: Any, name: str, classes: int, width: int) -> None:
        super().__init__()
        from torch_geometric.nn import HGTConv, RGCNConv

        self.kind, self.name, self.schema = kind, name, prepared.schema
        widths = prepared.schema.widths
        self.inputs = nn.ParameterList(
            nn.init.xavier_uniform_(torch.empty(size, width)) for size in widths.values()
        )
        self.types = list(widths)
        channels = prepared.schema.directions()
        self.edge_types = [
            (one.sender, f"{'back-' if one.backwards else ''}{number}", one.receiver)
            for number, one in enumerate(channels)
        ]
        layers = []
        for _ in range(2):
            if kind == "rgcn":
                layers.append(RGCNConv(width, width, len(channels), aggr="mean"))
            else:
                layers.append(HGTConv(width, width, (self.types, self.edge_types), heads=4))
        self.layers = nn.ModuleList(layers)
        self.output = nn.Linear(width, classes)

    def forward(self, x: Mapping[str, Features], edges: list[Tensor]) -> Tensor:
        """Returns the class scores of the nodes of the type."""
        h = {
            kind: elu(linear(x[kind], matrix))
            for kind, matrix in zip(self.types, self.inputs, strict=True)
        }
        if self.kind == "hgt":
            by_type = dict(zip(self.edge_types, edges, strict=True))
            for layer in self.layers:
                h = layer({k: dropout(v, 0.5, self.training) for k, v in h.items()}, by_type)
            return self.output(h[self.name])
        starts, place = {}, 0
        for kind in self.types:
            starts[kind], place = place, place + len(h[kind])
        ends = []
        for (sender, _, receiver), pair in zip(self.edge_types, edges, strict=True):
            moved = pair.new_tensor([[starts[sender]], [starts[receiver]]])
            ends.append(pair + moved)
        numbers = torch.cat([torch.full_like(pair[0], r) for r, pair in enumerate(ends)])
        rows = torch.cat([h[kind] for kind in self.types])
        for layer in self.layers:
            rows = elu(layer(dropout(rows, 0.5, self.training), torch.cat(ends, 1), numbers))
        start = starts[self.name]
        return self.output(rows[start : start + len(h[self.name])])


def supervised(
    kind: str,
    graph: Graph,
    name: str,
    split: Split,
    seed: int,
    device: torch.device,
    *,
    width: int = 64,
    epochs: int = 200,
    patience: int = 40,
) -> npt.NDArray[np.float32]:
    """Trains `rgcn` or `hgt` on labels; returns class scores at the best validation loss.

    The labels of other nodes than those of `split` are not given to it.
    """
    torch.manual_seed(seed)
    (prepared,) = prepare([graph], "auto")
    x, relations = prepared.tensors(device)
    edges = []
    for one in prepared.schema.directions():
        csr = relations[one.relation].toward(one.backwards)
        rows = torch.arange(len(csr.indptr) - 1, device=device)
        edges.append(torch.stack([csr.indices, rows.repeat_interleave(csr.indptr.diff())]))
    y = graph.nodes[name].y
    assert y is not None
    train, val = (torch.from_numpy(nodes).to(device) for nodes in split)
    of_train, of_val = (torch.from_numpy(y[nodes]).to(device) for nodes in split)
    model = _Supervised(kind, prepared, name, int(y.max()) + 1, width).to(device)
    adam = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=1e-4)
    best, left, kept = float("inf"), patience, copy.deepcopy(model.state_dict())
    for _ in range(epochs):
        model.train()
        adam.zero_grad()
        cross_entropy(model(x, edges)[train], of_train).backward()
        adam.step()
        model.eval()
        with torch.no_grad():
            loss = float(cross_entropy(model(x, edges)[val], of_val))
        if loss < best:
            best, left, kept = loss, patience, copy.deepcopy(model.state_dict())
        left -= 1
        if left == 0:
            break
    model.load_state_dict(kept)
    model.eval()
    with torch.no_grad():
        return model(x, edges).cpu().numpy()
