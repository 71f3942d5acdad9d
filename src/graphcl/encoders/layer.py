r"""A layer of an encoder, stated once; every way to compute it follows from the statement.

.. math:: H' = \sigma\bigl(\nu(\hat A H W_1 + H W_2 + b)\bigr)

:math:`\hat A H` is each node's mean over itself and its neighbours; only this term depends on edge
weights (`graphcl.kernels.adjacency`). :math:`W_2` multiplies the node's own row, :math:`\nu` is a
normalisation and :math:`\sigma` an activation. Each of these, and the bias b, may be absent.

The statement is used in four places:

- `Layer.on_graph` computes a layer on all nodes: whole-graph training, and small graphs. Given own
  rows of features and adjacency, it computes these rows (`graphcl.training.divided`).
  `Layer.on_rows` computes the nodes of a batch alone;
- `graphcl.sampling.encode_tree` computes it on sampled trees;
- `graphcl.embedding` computes it on blocks of rows, for graphs of any size;
- `graphcl.training.modes` reads its widths to estimate memory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from graphcl.encoders.side_by_side import SideBySide
from graphcl.errors import ParameterError
from graphcl.kernels.adjacency import Adjacency, mean_pool, mean_pool_elu, mean_pool_rows
from graphcl.kernels.features import Features, linear, product

BY_ROWS = (nn.LayerNorm, nn.RMSNorm, nn.Identity)


@dataclass(frozen=True)
class Layer:
    """The statement of one layer.

    Attributes:
        pooled: W_1, ``[inputs, outputs]``; multiplies the mean over the neighbourhood.
        own: W_2, ``[inputs, outputs]``; multiplies the node's own row. With None, the node only
            contributes to its mean.
        bias: b, ``[outputs]``, or None.
        normalisation: a module or function of ``[rows, outputs]``, before the activation. In
            inference it must treat each row independently, as batch normalisation does with its
            running statistics. In sampled training it gets the rows of all levels together. Several
            processes divide a whole graph if it is `nn.LayerNorm`, `nn.RMSNorm` or None.
        activation: an elementwise function, or None.
    """

    pooled: Tensor
    own: Tensor | None = None
    bias: Tensor | None = None
    normalisation: Callable[[Tensor], Tensor] | None = None
    activation: Callable[[Tensor], Tensor] | None = elu

    @property
    def outputs(self) -> int:
        """The width of the layer's result."""
        return self.pooled.shape[1]

    @property
    def ends_in_elu(self) -> bool:
        """Whether only ELU follows the products; fused kernels then compute both at once."""
        return self.bias is None and self.normalisation is None and self.activation is elu

    def finish(self, h: Tensor, *, inplace: bool = False) -> Tensor:
        """Applies what follows the products: bias, normalisation, activation.

        Args:
            h: the sum of the products, ``[rows, outputs]``.
            inplace: `h` may be overwritten.
        """
        if self.bias is not None:
            h = h + self.bias
        if self.normalisation is not None:
            h = self.normalisation(h)
        if self.activation is None:
            return h
        return elu(h, inplace=inplace) if self.activation is elu else self.activation(h)

    def on_graph(self, h: Features, adjacency: Adjacency) -> Tensor:
        """Returns the layer's result on every node, ``[num_nodes, outputs]``; differentiable.

        It pools before or after the product with W_1, where the rows are narrower. If both widths
        are equal it pools first, except with `own`: then the mean would be one more activation
        to keep for the backward pass.
        """
        inputs, outputs = self.pooled.shape
        pool_first = isinstance(h, Tensor) and (
            inputs < outputs or (inputs == outputs and self.own is None)
        )
        if isinstance(h, Tensor) and pool_first:
            mean = mean_pool(h, adjacency)
            if self.own is None:
                return self.finish(product(mean, self.pooled))
            return self.finish(torch.addmm(h @ self.own, mean, self.pooled))
        moved = linear(h, self.pooled)
        if self.own is not None:
            return self.finish(mean_pool(moved, adjacency) + linear(h, self.own))
        if self.ends_in_elu:
            return mean_pool_elu(moved, adjacency)
        return self.finish(mean_pool(moved, adjacency))

    @property
    def by_rows(self) -> bool:
        """Whether a row of the result depends on no other row of the products."""
        return self.normalisation is None or isinstance(self.normalisation, BY_ROWS)

    def on_rows(self, h: Tensor, adjacency: Adjacency, rows: Tensor) -> Tensor:
        """Returns some rows of what `on_graph` returns, to rounding, and computes no others.

        It pools first: few rows are multiplied then. On a CPU alone.
        """
        mean = mean_pool_rows(h, adjacency, rows)
        if self.own is None:
            return self.finish(product(mean, self.pooled))
        return self.finish(torch.addmm(h[rows] @ self.own, mean, self.pooled))


class LayeredEncoder(nn.Module):
    """An encoder that states its layers; subclasses define `statement` and their parameters.

    It can train on whole graphs and on sampled trees and embed graphs of any size layer by layer,
    and its training step can be recorded on a GPU.
    """

    recordable = True  # no shape depends on a draw: a CUDA graph can replay a step

    def __init__(self) -> None:
        super().__init__()
        self.beside: SideBySide | None = None  # what an embedding holds; None: the last layer alone

    def statement(self) -> tuple[Layer, ...]:
        """Returns the layers, from the input to the embedding."""
        raise NotImplementedError(f"{type(self).__name__} must define statement()")

    @property
    def width(self) -> int:
        """The columns of an embedding."""
        return self.statement()[-1].outputs if self.beside is None else self.beside.width

    def forward(self, x: Features, adjacency: Adjacency) -> Tensor:
        """Returns the result of the last layer, which training contrasts."""
        return self._results(x, adjacency)[-1]

    def on_rows(self, x: Features, adjacency: Adjacency, rows: Tensor) -> Tensor:
        """Returns some rows of what `forward` returns, to rounding.

        On a CPU the last layer computes these rows alone, which is most of what there is to save:
        the layers before it are needed around them.
        """
        *before, last = self.statement()
        alone = before and last.by_rows and rows.device.type == "cpu"
        if not alone or type(self).forward is not LayeredEncoder.forward:
            return cast("Tensor", self(x, adjacency))[rows]
        h = x
        for layer in before:
            h = layer.on_graph(h, adjacency)
        return last.on_rows(cast("Tensor", h), adjacency, rows)

    def embedding(self, x: Features, adjacency: Adjacency) -> Tensor:
        """Returns the embeddings, ``[num_nodes, width]``."""
        results = self._results(x, adjacency)
        return results[-1] if self.beside is None else self.beside.join(x, results)

    def _results(self, x: Features, adjacency: Adjacency) -> list[Tensor]:
        h, results = x, []
        for layer in self.statement():
            h = layer.on_graph(h, adjacency)
            results.append(h)
        return results


def stated_layers(encoder: nn.Module, who: str = "this") -> tuple[Layer, ...]:
    """Returns the layers that an encoder states.

    Raises:
        ParameterError: the encoder does not, and only works on whole graphs; `who` needs more.
    """
    if isinstance(encoder, LayeredEncoder):
        return encoder.statement()
    name = type(encoder).__name__
    raise ParameterError(
        f"{who} needs an encoder that states its layers, like mean or residual; got {name}"
    )


def glorot(module: nn.Module, generator: torch.Generator) -> None:
    """Draws every weight matrix of `module` by Glorot's rule and sets the biases to 0."""
    for name, parameter in module.named_parameters():
        if parameter.ndim >= 2:
            nn.init.xavier_uniform_(parameter, generator=generator)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
