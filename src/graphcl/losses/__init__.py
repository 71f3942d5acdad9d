"""The contrastive loss."""

from graphcl.losses.nt_xent import nt_xent

__all__ = ["nt_xent"]
