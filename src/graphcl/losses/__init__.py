"""The contrastive loss, and how to use a loss of your own.

A loss is called as ``loss(h_1, h_2)`` with the embeddings of a batch in both views and returns a
scalar. Three attributes are optional: ``across(h_1, h_2, num_nodes=, share=)`` is needed to train
in several processes, ``bound(value, num_nodes)`` is logged as `mi_bound`, and ``recordable = True``
allows a GPU to record the training step. ``LOSSES.register`` makes a factory known by name, for
recipes and saved runs; it is called with ``temperature=`` and ``precision=`` of the recipe.
"""

from typing import Protocol

from torch import Tensor

from graphcl.losses.nt_xent import NTXent, nt_xent
from graphcl.registry import LOSSES

__all__ = ["LOSSES", "Loss", "NTXent", "nt_xent"]


class Loss(Protocol):
    """The function that training minimises."""

    def __call__(self, h_1: Tensor, h_2: Tensor, /) -> Tensor:
        """Returns the loss between two views of a batch, a scalar.

        Args:
            h_1: embeddings in the first view, ``[M, dim]``.
            h_2: embeddings of the same nodes in the second view.
        """
