r"""Sampled L-hop subgraphs of a minibatch: regular trees, their two views, the encoder on them.

Every node of a level has the same number of sampled children, so level l of M seed nodes has
:math:`M f_1 \cdots f_l` tree nodes (1 + 10 + 100 + 1,000 per seed node at the paper's fan-outs).
The children of a tree node are stored side by side, so a mean over them is a reshape. Layer l of
the encoder is only needed on levels 0 to L − l.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from graphcl.encoders import Layer
from graphcl.errors import require
from graphcl.kernels.buffers import empty
from graphcl.kernels.counter import Draws, kept, shifted, stream_key, threshold
from graphcl.kernels.elu import pooled_elu
from graphcl.kernels.gather_mean import Held, gather_mean
from graphcl.kernels.neighbours import EdgeWeights, sample_neighbours
from graphcl.kernels.stored_features import StoredFeatures
from graphcl.views import Drop

FAN_OUTS = (10, 10, 10)  # the paper's, from the seed node outwards
DRAWS = 2  # raised when a seed gives other trees or views than before; checkpoints keep it


@dataclass(frozen=True)
class Tree:
    """The sampled subgraphs of M seed nodes.

    Attributes:
        levels: node numbers; level 0 holds the seed nodes, and level l + 1 the children of level l,
            those of one parent side by side.
        weights: for each level but the first, the weight of each child in its parent's mean, in
            which the parent itself has weight 1; 0 marks an empty slot.
        fan_outs: children per tree node, level by level.
        first: the place of the first seed node in its batch; draws depend on this place.
        places: the place of each seed node, if they do not follow one another; `first` is 0 then.
        rows: where the nodes of each level are in the table of features, if it has these alone.
    """

    levels: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    fan_outs: tuple[int, ...]
    first: int = 0
    places: Tensor | None = None
    rows: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class TreeView:
    """One view of a tree, ready for the encoder.

    Attributes:
        inputs: for levels 0 to L − 1, the means of the perturbed features over each tree node and
            its kept children, ``[size, P]``. If a layer also uses the node's own row (`Layer.own`),
            the tree nodes' own perturbed features follow, ``[size, 2P]``.
        self_weights: weight of each tree node in its own mean, ``[size, 1]`` for levels 0 to L − 2.
        child_weights: weights of its children, ``[size, 1, fan_out]``; 0 if the edge was dropped.
    """

    inputs: tuple[Tensor, ...]
    self_weights: tuple[Tensor, ...]
    child_weights: tuple[Tensor, ...]


def sample_tree(
    indptr: Tensor,
    indices: Tensor,
    nodes: Tensor,
    *,
    fan_outs: Sequence[int] = FAN_OUTS,
    replace: bool = True,
    unbiased: bool = True,
    edge_weights: EdgeWeights | None = None,
    seed: int,
    first: int = 0,
) -> Tree:
    r"""Samples the L-hop subgraphs of `nodes`; a seed gives the same trees on any device.

    A sampled child represents :math:`d / f` of its parent's d neighbours, and this is its weight.
    Without perturbation, the expectation of the tree's mean is then the exact mean over
    :math:`\{u\} \cup N(u)`, and training agrees with exact inference. Without replacement, a node
    with :math:`d \le f` neighbours has each of them once, with weight 1; its other slots hold the
    node itself with weight 0. All slots of a node without neighbours hold the node itself.

    Differs from the paper: there (as in GraphSAGE) a child has the weight of its parent, so u
    itself makes up 1/11 of its mean whatever its degree. `unbiased` = False does the same.

    Args:
        indptr: CSR row pointers, int64.
        indices: CSR column indices, int64; on a CPU int32 too.
        nodes: the M seed nodes.
        fan_outs: children per tree node, one number per layer of the encoder.
        replace: draw with replacement, as GraphSAGE does.
        unbiased: weight children by their parent's degree.
        edge_weights: of a weighted graph. With replacement, the expectation is the exact weighted
            mean. Without replacement, this holds if all neighbours are taken, and otherwise in the
            limit of many draws, because the sum of the drawn weights varies.
        seed: decides every draw.
        first: if `nodes` are a part of a batch, the place of the first of them. They get the
            same subgraphs, and in `tree_views` the same views, as in the whole batch.
    """
    valid = len(fan_outs) > 0 and all(fan_out >= 1 for fan_out in fan_outs)
    require(valid, "sample_tree", "fan_outs", "one number of at least 1 per layer", fan_outs)
    levels, weights = [nodes], []
    for hop, fan_out in enumerate(fan_outs):
        parents = levels[-1]
        place = first * math.prod(fan_outs[: hop + 1])
        key = shifted(stream_key(seed, "neighbours", hop), place)
        degree = indptr[parents + 1] - indptr[parents]
        weight = child_weights(degree, fan_out, replace=replace, unbiased=unbiased)
        if edge_weights is None:
            children = sample_neighbours(
                indptr, indices, parents, fan_out=fan_out, replace=replace, key=key
            )
        else:
            children, relative = edge_weights.sample(
                indptr, indices, parents, fan_out=fan_out, key=key
            )
            weight = weight if relative is None else weight * relative
        weights.append(weight)
        levels.append(children)
    return Tree(tuple(levels), tuple(weights), tuple(fan_outs), first)


def child_weights(degree: Tensor, fan_out: int, *, replace: bool, unbiased: bool = True) -> Tensor:
    """Returns the weight of each child of parents with these degrees; see `sample_tree`."""
    degree = degree[:, None].float()
    if replace:
        each = degree / fan_out if unbiased else torch.ones_like(degree)
        return each.expand(-1, fan_out).reshape(-1)
    each = degree.clamp(min=fan_out) / fan_out if unbiased else torch.ones_like(degree)
    slots = torch.arange(fan_out, device=degree.device)
    return torch.where(slots < degree, each, 0.0).reshape(-1)


def tree_views(
    x: Tensor | StoredFeatures,
    tree: Tree,
    perturbation: Drop,
    *,
    own: bool,
    seed: int,
) -> tuple[TreeView, TreeView]:
    """Draws two views of each seed node's subgraph, independent of each other.

    Each undirected edge is absent with probability `edge_drop`. Each feature of each node is zero
    with probability `feature_drop`, and otherwise scaled by ``1 / (1 - feature_drop)``. As in the
    paper, a view perturbs a seed node's subgraph once: an edge is kept or dropped wherever it
    occurs in the tree, in either direction, and a node has one set of features. Subgraphs of
    different seed nodes are perturbed independently.

    Args:
        x: features of the graph, ``[num_nodes, P]``, on the tree's device; on a CPU also a table in
            the type of a store.
        tree: what to perturb.
        perturbation: gives the two probabilities.
        own: also return the tree nodes' own features, for layers that use the node's own row.
        seed: decides every draw.
    """
    edge_drop, feature_drop = perturbation.edge_drop, perturbation.feature_drop
    width = x.shape[1] * (2 if own else 1)
    like = x if isinstance(x, Tensor) else torch.empty(0)  # stored features: float32
    keys = stream_key(seed, "edges"), stream_key(seed, "features")
    parts: list[tuple[list[Tensor], list[Tensor], list[Tensor]]] = [([], [], []), ([], [], [])]
    for level, weight in enumerate(tree.weights):
        parents, children = tree.levels[level : level + 2]
        # By the place in the batch, not by the node: a node that is given twice has two subgraphs.
        per_seed = math.prod(tree.fan_outs[:level])
        draws = Draws(edge_drop, feature_drop, *keys, tree.first, per_seed)
        deepest = level + 1 == len(tree.weights)
        out = empty((2, len(parents), width), like)
        bits = None if deepest else torch.empty_like(children, dtype=torch.int64)
        held = None
        if tree.places is not None:
            held = Held(tree.rows[level], tree.rows[level + 1], tree.places)
        gather_mean(x, parents, children, weight, draws=draws, out=out, edges=bits, held=held)
        for view in (0, 1):
            parts[view][0].append(out[view])
        if bits is None:
            break  # only the first layer uses the deepest edges, and its means are in `inputs`
        for view, (_, self_weights, child_weights) in enumerate(parts):
            kept_weight = torch.where(kept(bits, view, threshold(edge_drop)), weight, 0.0)
            of_children = kept_weight.view(len(parents), 1, -1)
            total = 1 + of_children.sum(2, keepdim=True)
            self_weights.append((1 / total[:, 0]).to(like.dtype))
            child_weights.append((of_children / total).to(like.dtype))
    first, second = (TreeView(*map(tuple, lists)) for lists in parts)
    return first, second


def encode_tree(view: TreeView, layers: Sequence[Layer]) -> Tensor:
    r"""Returns the embeddings of the seed nodes, ``[M, dim]`` in float32.

    Layer l computes the rows of levels 0 to L − l from those of levels 0 to L − l + 1. So each
    layer leaves one level fewer, and after the last one only the seed nodes are left. The first
    layer's means are already in `view`. The deepest level is by far the largest: of its rows, only
    the sums over each parent's children are kept (`pooled_elu`).

    Args:
        view: from `tree_views`; bfloat16 inputs are multiplied in bfloat16.
        layers: the layers that the encoder states, as many as the tree has hops.
    """
    hops, dtype = len(view.inputs), view.inputs[0].dtype
    require(len(layers) == hops, "encode_tree", "layers", f"{hops}, the hops", len(layers))
    # One product for both parts of a layer: [mean, own] @ [W_1; W_2].
    weights = [
        (layer.pooled if layer.own is None else torch.cat([layer.pooled, layer.own])).to(dtype)
        for layer in layers
    ]
    first, *others = layers
    *upper, deepest = view.inputs
    if not others:
        return first.finish(deepest @ weights[0]).float()
    # One tensor per level: the gradient of a slice of one table would be a whole table of zeros.
    if first.ends_in_elu:
        h = [first.finish(inputs @ weights[0], inplace=True) for inputs in upper]
        around = [_around(*pair) for pair in zip(h[1:], view.child_weights, strict=False)]
        around.append(pooled_elu(deepest, weights[0], view.child_weights[-1]))
    else:
        levels = _finish(first, [inputs @ weights[0] for inputs in view.inputs])
        h = levels[:-1]
        around = [_around(*pair) for pair in zip(levels[1:], view.child_weights, strict=True)]
    # `around` holds the sums over the children of each level in `h` but the deepest. It is the
    # shortest argument of each zip (strict=False), which so leaves one level fewer.
    for layer, weight in zip(others, weights[1:], strict=True):
        terms = zip(around, h, view.self_weights, strict=False)
        means = [torch.addcmul(children, own, share) for children, own, share in terms]
        if layer.own is not None:
            means = [torch.cat(pair, dim=1) for pair in zip(means, h, strict=False)]
        h = _finish(layer, [mean @ weight for mean in means])
        around = [_around(*pair) for pair in zip(h[1:], view.child_weights, strict=False)]
    return h[0].float()


def _finish(layer: Layer, levels: list[Tensor]) -> list[Tensor]:
    """Applies bias, normalisation and activation; all levels are normalised together."""
    dtype = levels[0].dtype  # a bias or a normalisation in float32 must not widen bfloat16
    if layer.normalisation is None:
        return [layer.finish(level).to(dtype) for level in levels]
    joined = layer.finish(torch.cat(levels)).to(dtype)
    return list(torch.split(joined, [len(level) for level in levels]))


def _around(children: Tensor, weights: Tensor) -> Tensor:
    """Returns the weighted sum of each tree node's children."""
    return (weights @ children.view(len(weights), -1, children.shape[1]))[:, 0]
