"""Draws of trees and their means in plain tensor operations, to hold compiled loops against."""

import torch

from graphcl.kernels.counter import FIRST, HALVES, draw, kept, threshold


def draw_long(number, key):
    """`draw` for any int64 from 0 on: both of its words count. Below 2^32 it is `draw` itself."""
    return draw(number, (key[0], key[1] + (number >> 32) * FIRST))


def nested(number, key):
    """Returns, for each number, the key of a stream of its own."""
    return draw_long(number, key), draw_long(number, (key[1], key[0]))


def ends(draws, parents, children):
    """Returns the two ends of edges, in the order in which their draws count them."""
    if draws.order == 0:
        return parents.minimum(children), parents.maximum(children)
    return (children, parents) if draws.order == 1 else (parents, children)


def edge_draws(places, one, other, key):
    """Returns the draws of edges in the trees of the seed nodes with these places in the batch."""
    return draw_long(other, nested(one, nested(places, key)))


def feature_draws(places, nodes, width, key):
    """Returns the draws of nodes' features in the trees of seed nodes, ``[len(nodes), width]``."""
    word_0, word_1 = nested(nodes, nested(places, key))
    return draw(torch.arange(width), (word_0[:, None], word_1[:, None]))


def dropped(rows, places, nodes, draws):
    """Returns two views of the feature rows of `nodes` after dropout, in float32."""
    bits = feature_draws(places, nodes, rows.shape[1], draws.features)
    limit = threshold(draws.feature_drop)
    scaled = rows.float() * (HALVES / (HALVES - limit))
    return [torch.where(kept(bits, view, limit), scaled, 0) for view in (0, 1)]


def gather_mean(x, family, *, draws, out, column=0, own=None, edges=None):
    """Does what `graphcl.kernels.gather_mean.gather_mean` does."""
    fan_out, width, upper, lower = family.fan_out, x.shape[1], family.parents, family.children
    above = upper if family.parent_rows is None else family.parent_rows
    under = lower if family.child_rows is None else family.child_rows
    places = family.places.repeat_interleave(fan_out)
    drawn = edge_draws(places, *ends(draws, upper.repeat_interleave(fan_out), lower), draws.edges)
    if edges is not None:
        edges[:] = drawn
    around = dropped(x[under], places, lower, draws)
    itself = dropped(x[above], family.places, upper, draws) if draws.within else (0.0, 0.0)
    for view in (0, 1):
        keep = kept(drawn, view, threshold(draws.edge_drop))
        w = torch.where(keep, family.weight, 0).view(len(upper), 1, fan_out)
        total = itself[view] + (w @ around[view].view(len(upper), fan_out, width))[:, 0]
        weight = w.sum(2) + (1 if draws.within else 0)
        mean = torch.where(weight > 0, total / torch.where(weight > 0, weight, 1), 0)
        out[view, :, column : column + width] = mean
        if own is not None:
            out[view, :, own : own + width] = itself[view]
