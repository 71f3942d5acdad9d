r"""Sampled L-hop subgraphs of a minibatch: trees, their two views, the encoder on them.

Every node of a type has the same number of sampled children in each direction in which the type
receives. On a plain graph with fan-out f, level l of M seed nodes so has :math:`M f^l` tree nodes
(1 + 10 + 100 + 1,000 per seed node at the paper's fan-outs). Layer l of the encoder is only needed
on levels 0 to L − l.

Draws belong to the place of the seed node in the batch, and to the edge, by its two ends, or to the
node: in the tree of one seed node an edge is kept or dropped wherever it occurs, in either
direction, and a node has one set of features. Edges with the same two ends share a draw.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graphcl.encoders import Layer, LayeredEncoder
from graphcl.errors import require
from graphcl.graphs.relation import EDGE, NODE
from graphcl.kernels.buffers import empty
from graphcl.kernels.counter import Draws, Keys, Seed, kept, step_key, threshold
from graphcl.kernels.elu import pooled_elu
from graphcl.kernels.gather_mean import Family, gather_mean
from graphcl.topology import Children, Features, Level, Seeds, Topology, Tree, TreeNodes
from graphcl.views import Drop

FAN_OUT, HOPS = 10, 3  # the paper's
DRAWS = 3  # raised when a seed gives other trees or views than before; checkpoints keep it


def sample_tree(
    topology: Topology,
    seeds: Seeds,
    *,
    layers: int,
    seed: Seed,
    own: slice | Tensor | None = None,
) -> Tree:
    r"""Samples the L-hop subgraphs of seed nodes; a seed gives the same trees on any device.

    A sampled child represents :math:`d / f` of its parent's d neighbours, and this is its weight.
    Without perturbation, the expectation of the tree's mean is then the exact mean over
    :math:`\{u\} \cup N(u)`, and training agrees with exact inference. Without replacement, a node
    with :math:`d \le f` neighbours has each of them once, with weight 1; its other slots are empty,
    with weight 0. With weighted edges and replacement, the expectation is the exact weighted mean.
    Without replacement, this holds if all neighbours are taken, and otherwise in the limit of many
    draws, because the sum of the drawn weights varies.

    Differs from the paper: there (as in GraphSAGE) a child has the weight of its parent, so u
    itself makes up 1/11 of its mean whatever its degree.

    Args:
        topology: the graph.
        seeds: the seed nodes of a batch by type.
        layers: L, the hops.
        seed: decides every draw.
        own: the places in the batch of the seed nodes that are sampled, which get the same
            subgraphs as in the whole batch; None samples all.
    """
    require(layers >= 1, "sample_tree", "layers", "at least 1", layers)
    tree = [_top(seeds, own)]
    while True:
        for name, table in tree[-1].items():
            for edges in topology.into.get(name, ()):
                key = edges.key(seed, len(tree) - 1)
                drawn = topology.draw(edges, table.nodes, table.ranks, key)
                weight = edges.child_weights(drawn)
                table.children.append(Children(edges, drawn.children, weight, drawn.vectors))
        if len(tree) == layers:
            return tree
        tree.append(_below(tree[-1]))


def _top(seeds: Seeds, own: slice | Tensor | None) -> Level:
    """Returns the seed nodes, or those at some places of the batch."""
    top: Level = {}
    before = 0
    for name, nodes in seeds.items():
        some = torch.arange(len(nodes), device=nodes.device)
        if isinstance(own, slice):
            some = some[max(own.start - before, 0) : max(own.stop - before, 0)]
        elif own is not None:
            some = own[(own >= before) & (own < before + len(nodes))] - before
        top[name] = TreeNodes(nodes[some], before + some, some, len(nodes))
        before += len(nodes)
    return top


def _below(level: Level) -> Level:
    """Returns the children of a level as a level, those of one direction after the other."""
    pieces: dict[str, list[TreeNodes]] = {}
    for table in level.values():
        for one in table.children:
            fan_out, found = one.edges.fan_out, pieces.setdefault(one.edges.direction.sender, [])
            before = found[-1].total if found else 0
            slots = torch.arange(before, before + fan_out, device=one.nodes.device)
            ranks = (table.ranks[:, None] * fan_out + slots).view(-1)
            places = table.places.repeat_interleave(fan_out)
            found.append(TreeNodes(one.nodes, places, ranks, before + table.total * fan_out))
    return {name: _joined(found) for name, found in pieces.items()}


def _joined(pieces: list[TreeNodes]) -> TreeNodes:
    if len(pieces) == 1:
        return pieces[0]
    parts = zip(*((one.nodes, one.places, one.ranks) for one in pieces), strict=True)
    nodes, places, ranks = (torch.cat(part) for part in parts)
    return TreeNodes(nodes, places, ranks, pieces[-1].total)


@dataclass(frozen=True)
class Shares:
    """One view's weights in the means over the children of one direction.

    Attributes:
        children: of each child, ``[n, 1, fan_out]``; 0 if the edge was dropped.
        own: of the parent itself, ``[n, 1]``; None if it is not in its mean.
        vectors: the means of the edges' vectors, ``[n, width]``; None without them.
    """

    children: Tensor
    own: Tensor | None
    vectors: Tensor | None


@dataclass(frozen=True)
class TreeView:
    """One view of a tree, ready for the encoder.

    Attributes:
        tree: whose view it is.
        inputs: for each level and type, the means of the perturbed features and of the edges'
            vectors in each direction, and then, if wanted, the nodes' own perturbed features.
        shares: for each level but the deepest, and each type, the weights in each direction.
        own: whether the inputs have the nodes' own features.
        widths: the number of features of each type.
    """

    tree: Tree
    inputs: list[dict[str, Tensor]]
    shares: list[dict[str, list[Shares]]]
    own: bool
    widths: Mapping[str, int]


def tree_views(
    x: Mapping[str, Features], tree: Tree, perturbation: Drop, *, own: bool, seed: Seed
) -> tuple[TreeView, TreeView]:
    """Draws two views of each seed node's subgraph, independent of each other.

    Each edge is absent with probability `edge_drop`. Each feature of each node is zero with
    probability `feature_drop`, and otherwise scaled by ``1 / (1 - feature_drop)``. As in the paper,
    a view perturbs a seed node's subgraph once: an edge is kept or dropped wherever it occurs in
    the tree, in either direction, and a node has one set of features. Subgraphs of different seed
    nodes are perturbed independently.

    Args:
        x: features by type, on the tree's device; on a CPU also tables in the type of a store.
        tree: what to perturb.
        perturbation: gives the probabilities.
        own: also return the tree nodes' own features, for layers that use the node's own row.
        seed: decides every draw.
    """
    widths = {name: table.shape[1] for name, table in x.items()}
    views = TreeView(tree, [], [], own, widths), TreeView(tree, [], [], own, widths)
    for depth, level in enumerate(tree):
        deepest = depth + 1 == len(tree)
        made = {
            name: _perturbed(x, name, table, perturbation, own, seed, deepest)
            for name, table in level.items()
        }
        for number, view in enumerate(views):
            view.inputs.append({name: inputs[number] for name, (inputs, _) in made.items()})
            if not deepest:
                view.shares.append({name: shares[number] for name, (_, shares) in made.items()})
    return views


def _perturbed(
    x: Mapping[str, Features],
    name: str,
    table: TreeNodes,
    perturbation: Drop,
    own: bool,
    seed: Seed,
    deepest: bool,
) -> tuple[Tensor, tuple[list[Shares], list[Shares]]]:
    """Returns the inputs of a type's nodes in both views, and the weights of their children.

    Only the first layer uses the deepest edges, and its means are in the inputs.
    """
    like = x[name]
    like = like if isinstance(like, Tensor) else torch.empty(0)  # stored features: float32
    widths = [x[one.edges.direction.sender].shape[1] for one in table.children]
    own_width = x[name].shape[1] if own else 0
    before = sum(widths) + sum(one.edges.width for one in table.children)
    out = empty((2, len(table.nodes), before + own_width), like)
    shares: tuple[list[Shares], list[Shares]] = ([], [])
    column, waiting = 0, own  # for the nodes' own features, which a mean within the type has too
    for one, width in zip(table.children, widths, strict=True):
        edges, sender = one.edges, one.edges.direction.sender
        rate = perturbation.edge_rate(edges.direction.relation)
        draws = Draws(
            rate,
            perturbation.feature_rate(sender),
            _stream(seed, "edges", *edges.direction.relation),
            _stream(seed, "features", sender),
            edges.within,
            edges.order,
        )
        bits = None
        if not deepest or one.vectors is not None:
            bits = torch.empty_like(one.nodes, dtype=torch.int64)
        gather_mean(
            x[sender],
            Family(table.nodes, one.nodes, one.weight, table.places, table.rows, one.rows),
            draws=draws,
            out=out,
            column=column,
            own=before if waiting and edges.within else None,
            edges=bits,
        )
        waiting = waiting and not edges.within
        column += width
        if bits is not None:
            for view in (0, 1):
                found = _shares(one, kept(bits, view, threshold(rate)), like.dtype)
                shares[view].append(found)
                if found.vectors is not None:
                    out[view, :, column : column + edges.width] = found.vectors
        column += edges.width
    if waiting:
        none = table.nodes[:0]
        alone = Family(table.nodes, none, none.float(), table.places, table.rows, none)
        rate, stream = perturbation.feature_rate(name), _stream(seed, "features", name)
        gather_mean(x[name], alone, draws=Draws(0, rate, stream, stream), out=out, column=before)
    return out, shares


def _stream(seed: Seed, kind: str, *named: str) -> Keys:
    """Returns the stream of draws of a relation or a type; those of plain graphs have no names."""
    return step_key(seed, kind, *(() if named in (EDGE, (NODE,)) else named))


def _shares(one: Children, keep: Tensor, dtype: torch.dtype) -> Shares:
    """Returns the weights in one view, in which only some edges are kept."""
    fan_out, within = one.edges.fan_out, one.edges.within
    of_children = torch.where(keep, one.weight, 0.0).view(-1, 1, fan_out)
    total = of_children.sum(2, keepdim=True) + (1 if within else 0)
    total = torch.where(total > 0, total, 1)
    children, vectors = (of_children / total).to(dtype), None
    if one.vectors is not None:
        rows = one.vectors.view(len(children), fan_out, one.edges.width)
        vectors = (children @ rows.to(dtype))[:, 0]
    return Shares(children, (1 / total[:, 0]).to(dtype) if within else None, vectors)


def tree_to(tree: Tree, device: torch.device) -> Tree:
    """Returns a tree whose tensors are on a device."""

    def moved(given: Tensor | None) -> Tensor | None:
        return None if given is None else given.to(device, non_blocking=True)

    def children(one: Children) -> Children:
        parts = {name: moved(getattr(one, name)) for name in ("nodes", "weight", "vectors", "rows")}
        return replace(one, **parts)  # type: ignore[arg-type]

    def table(one: TreeNodes) -> TreeNodes:
        parts = {name: moved(getattr(one, name)) for name in ("nodes", "places", "ranks", "rows")}
        return replace(one, **parts, children=[children(child) for child in one.children])  # type: ignore[arg-type]

    return [{name: table(one) for name, one in level.items()} for level in tree]


def encode_tree(view: TreeView, encoder: LayeredEncoder) -> list[Tensor]:
    r"""Returns the embeddings of the seed nodes, ``[M, dim]`` in float32, for each type.

    Layer l computes the rows of levels 0 to L − l from those of levels 0 to L − l + 1. So each
    layer leaves one level fewer, and after the last one only the seed nodes are left. The first
    layer's means are already in `view`. The deepest level is by far the largest: where the first
    layer ends in ELU, only the sums over each parent's children are kept (`pooled_elu`).

    Args:
        view: from `tree_views`; bfloat16 inputs are multiplied in bfloat16.
        encoder: states as many layers as the tree has hops.
    """
    levels, hops = encoder.levels(), len(view.inputs)
    require(len(levels) == hops, "encode_tree", "layers", f"{hops}, the hops", len(levels))
    tables = {name: table for level in view.tree for name, table in level.items()}
    first, *others = levels
    weights = {
        name: _first_weight(encoder, first[name], name, table, view)
        for name, table in tables.items()
    }
    if not others:
        top = view.inputs[0]
        return [first[name].finish(rows @ weights[name]).float() for name, rows in top.items()]
    # One tensor per level: the gradient of a slice of one table would be a whole table of zeros.
    if all(first[name].ends_in_elu for name in tables):
        h = [
            {
                name: first[name].finish(rows @ weights[name], inplace=True)
                for name, rows in level.items()
            }
            for level in view.inputs[:-1]
        ]
        around = [_around(view, depth, rows) for depth, rows in enumerate(h[1:])]
        around.append(_around(view, hops - 2, view.inputs[-1], weights))
    else:
        h = _finish(
            first,
            [{name: x @ weights[name] for name, x in level.items()} for level in view.inputs],
        )
        around = [_around(view, depth, rows) for depth, rows in enumerate(h[1:])]
    # `around` holds the sums over the children of each level in `h` but the deepest.
    for layer in others:
        weights = {name: _later_weight(layer[name], table) for name, table in tables.items()}
        h = _finish(
            layer,
            [
                {
                    name: _later(layer[name], view, depth, name, h[depth][name], found)
                    @ weights[name].to(h[depth][name].dtype)
                    for name, found in sums.items()
                }
                for depth, sums in enumerate(around)
            ],
        )
        around = [_around(view, depth, rows) for depth, rows in enumerate(h[1:])]
    return [rows.float() for rows in h[0].values()]


def _first_weight(
    encoder: LayeredEncoder, layer: Layer, name: str, table: TreeNodes, view: TreeView
) -> Tensor:
    """Returns the matrix of the first layer, which includes the input maps.

    One product serves all parts of a layer: [mean, own] @ [W_1; W_2]. Inputs that the layer does
    not use meet zeros.
    """
    messages = {one.direction: one for one in layer.received}
    parts: list[Tensor] = []

    def add(width: int, weight: Tensor | None, into: Tensor | None = None) -> None:
        if weight is None:
            weight = next(encoder.parameters()).new_zeros(width, layer.outputs)
            into = None
        parts.append(weight if into is None else into @ weight)

    for one in table.children:
        sender, message = one.edges.direction.sender, messages.get(one.edges.direction)
        into = encoder.input_map(sender)
        add(view.widths[sender], None if message is None else message.pooled, into)
        if one.edges.width:
            of_edges = None if message is None else message.edges
            pooled = None if message is None or of_edges is None else message.pooled
            add(one.edges.width, pooled, of_edges)
    if view.own:
        add(view.widths[name], layer.own, encoder.input_map(name))
    dtype = next(iter(view.inputs[0].values())).dtype
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).to(dtype)


def _later_weight(layer: Layer, table: TreeNodes) -> Tensor:
    """Returns the matrix of a later layer: those of its messages, and of the node's own row."""
    messages = {one.direction: one for one in layer.received}
    parts: list[Tensor] = []
    for one in table.children:
        message = messages.get(one.edges.direction)
        if message is not None:
            parts.append(message.pooled)
            if message.edges is not None and one.vectors is not None:
                parts.append(message.edges @ message.pooled)
    if layer.own is not None:
        parts.append(layer.own)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _later(
    layer: Layer, view: TreeView, depth: int, name: str, h: Tensor, sums: list[Tensor]
) -> Tensor:
    """Returns what the matrix of a later layer multiplies, for the nodes of a type in a level."""
    messages = {one.direction: one for one in layer.received}
    rows: list[Tensor] = []
    drawn = zip(view.tree[depth][name].children, sums, view.shares[depth][name], strict=True)
    for one, children, share in drawn:
        message = messages.get(one.edges.direction)
        if message is None:
            continue
        rows.append(children if share.own is None else torch.addcmul(children, h, share.own))
        if message.edges is not None and share.vectors is not None:
            rows.append(share.vectors)
    if layer.own is not None:
        rows.append(h)
    return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)


def _finish(
    layers: Mapping[str, Layer], levels: Sequence[Mapping[str, Tensor]]
) -> list[dict[str, Tensor]]:
    """Applies bias, normalisation and activation; all levels are normalised together."""
    found: list[dict[str, Tensor]] = [{} for _ in levels]
    for name, layer in layers.items():
        given = [level[name] for level in levels if name in level]
        if not given:
            continue
        dtype = given[0].dtype  # a bias or a normalisation in float32 must not widen bfloat16
        if layer.normalisation is None:
            done = [layer.finish(rows).to(dtype) for rows in given]
        else:
            joined = layer.finish(torch.cat(given)).to(dtype)
            done = list(torch.split(joined, [len(rows) for rows in given]))
        places = [place for place, level in enumerate(levels) if name in level]
        for place, rows in zip(places, done, strict=True):
            found[place][name] = rows
    return [{name: found[place][name] for name in level} for place, level in enumerate(levels)]


def _around(
    view: TreeView,
    depth: int,
    below: Mapping[str, Tensor],
    weights: Mapping[str, Tensor] | None = None,
) -> dict[str, list[Tensor]]:
    """Returns the weighted sums of the children of a level, by type and direction.

    Args:
        view: has the weights.
        depth: the level of the parents.
        below: the rows of the level below; with `weights`, these are multiplied and activated.
        weights: the matrices of the first layer.
    """
    level = view.tree[depth]
    sizes: dict[str, list[int]] = {}
    for table in level.values():
        for one in table.children:
            sizes.setdefault(one.edges.direction.sender, []).append(len(one.nodes))
    pieces = {
        name: iter([below[name]] if len(some) == 1 else torch.split(below[name], some))
        for name, some in sizes.items()
    }
    found: dict[str, list[Tensor]] = {}
    for name, table in level.items():
        found[name] = []
        for one, share in zip(table.children, view.shares[depth][name], strict=True):
            sender, of_children = one.edges.direction.sender, share.children
            rows = next(pieces[sender])
            if weights is not None:
                found[name].append(pooled_elu(rows, weights[sender], of_children))
                continue
            each = rows.view(len(of_children), one.edges.fan_out, rows.shape[1])
            found[name].append((of_children @ each)[:, 0])
    return found
