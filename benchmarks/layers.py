"""What hand-written layers of the rivals earn beside PyTorch Geometric's.

usage: python -m benchmarks.layers [--graphs cora pubmed] [--repeats 15] [--out ROWS.jsonl]

Each row is one layer on one graph: the CPU milliseconds of a forward and a backward pass on one
thread, ours and PyTorch Geometric's, the median of passes that take turns. Both have the same
weights, and their results are compared first. `convolution` is that of DGI; `convolution of a view`
drops edges and normalises in every pass, as GRACE, BGRL and CCA-SSG do; `attention` is GraphMAE's;
`decoder` is its decoder, which needs half of the nodes; `sampled mean` is a layer of GraphSAGE over
25 sampled neighbours of 512 nodes.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import prelu
from torch_geometric.nn import GATConv, GCNConv, SAGEConv
from torch_geometric.utils import dropout_edge

from benchmarks import rows
from graphcl.datasets import load_dataset
from graphcl.graphs.graph import Graph
from graphcl.graphs.tensors import graph_tensors
from graphcl.kernels.features import linear
from graphcl.kernels.neighbours import sample_levels
from graphcl.research.systems.graphmae import _Attention
from graphcl.research.systems.graphsage import Aggregator
from graphcl.research.systems.layers import Convolutions, Symmetric, dense_csr, draw_view

DIM, HEADS, DROP = 512, 4, 0.3
CPU = torch.device("cpu")
Pass = Callable[[], Tensor]


def layers(graph: Graph) -> Iterator[tuple[str, Pass, Pass, bool]]:
    """Yields a layer's name, ours and PyTorch Geometric's, and whether the results must agree."""
    x, adjacency = graph_tensors(graph, device=CPU, feature_scaling="row")
    table, edges = x.to_dense(), adjacency.edge_index()
    nodes, width = table.shape
    draw = torch.Generator().manual_seed(0)

    ours = Convolutions((width, DIM), draw=draw, activation="prelu")
    pool = Symmetric.normalised(adjacency)
    theirs = GCNConv(width, DIM, cached=True)
    views = GCNConv(width, DIM)
    with torch.no_grad():
        for one in (theirs, views):
            one.lin.weight.copy_(ours.weights[0].T)
    slope = ours.slopes[0]

    def our_layer() -> Tensor:
        return ours.propagate(linear(x, ours.weights[0]), pool)

    yield "convolution", our_layer, lambda: prelu(theirs(table, edges), slope), True

    def our_view() -> Tensor:
        return ours(*draw_view(x, adjacency, edge_drop=DROP, feature_drop=DROP, generator=draw))

    def their_view() -> Tensor:
        kept, _ = dropout_edge(edges, p=DROP, force_undirected=True)
        return prelu(views(table * (torch.rand(width) >= DROP), kept), slope)

    yield "convolution of a view", our_view, their_view, False

    attention = _Attention(width, DIM, heads=HEADS, draw=draw)
    looped = torch.cat([edges, torch.arange(nodes).expand(2, -1)], dim=1)
    gat = GATConv(width, DIM // HEADS, heads=HEADS, add_self_loops=False)
    _copy(gat, attention)
    yield "attention", lambda: attention(table, adjacency, None), lambda: gat(table, looped), True

    decoder = _Attention(DIM, width, heads=1, draw=draw)
    one_head = GATConv(DIM, width, heads=1, add_self_loops=False)
    _copy(one_head, decoder)
    h, hidden = torch.randn(nodes, DIM, generator=draw), torch.arange(nodes // 2)
    yield (
        "decoder",
        lambda: decoder.decode(h, hidden, adjacency, (0, 0), draw),
        lambda: one_head(h, looped)[hidden],
        True,
    )

    sage, mean = SAGEConv((width, width), DIM, bias=False), Aggregator("mean", width, DIM)
    table, indptr, indices = dense_csr(graph, CPU, "row")
    levels = sample_levels(indptr, indices, torch.arange(512), fan_outs=(25,), seed=0)
    own, around = table[levels[0]], table[levels[1]]
    with torch.no_grad():
        torch.nn.init.xavier_uniform_(mean.own, generator=draw)
        torch.nn.init.xavier_uniform_(mean.weight, generator=draw)
        sage.lin_r.weight.copy_(mean.own.T)
        sage.lin_l.weight.copy_(mean.weight.T)
    places = torch.arange(len(around))
    tree = torch.stack([places, places // 25])
    yield (
        "sampled mean",
        lambda: mean(own, around.view(512, 25, -1)).unflatten(1, (2, -1)).sum(1),
        lambda: sage((around, own), tree),
        True,
    )


def _copy(gat: GATConv, ours: _Attention) -> None:
    with torch.no_grad():
        gat.lin.weight.copy_(ours.weight.T)
        gat.att_dst.copy_(ours.receiving[None])
        gat.att_src.copy_(ours.giving[None])


def milliseconds(passes: list[Pass], repeats: int) -> list[float]:
    """Returns the median CPU time of each pass with its backward pass; they take turns."""
    found: list[list[float]] = [[] for _ in passes]
    for number in range(repeats + 2):
        for place, one in enumerate(passes):
            began = time.process_time()
            one().square().mean().backward()
            if number >= 2:
                found[place].append(1000 * (time.process_time() - began))
    return [median(times) for times in found]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--graphs", nargs="+", default=["cora", "pubmed"])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.graphs:
        for layer, ours, theirs, same in layers(load_dataset(name)):
            if same:
                torch.testing.assert_close(ours(), theirs(), rtol=1e-4, atol=1e-5)
            mine, other = milliseconds([ours, theirs], options.repeats)
            row = {"layer": layer, "graph": name, "ours_ms": mine, "pyg_ms": other}
            print(f"{layer} on {name}: {mine:.1f} ms, PyG {other:.1f} ms, {other / mine:.2f} ×")
            if options.out:
                rows.append(options.out, row | rows.provenance(CPU))


if __name__ == "__main__":
    main()
