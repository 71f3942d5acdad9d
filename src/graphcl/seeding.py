"""Randomness as an argument.

Every stochastic function of this package takes a `torch.Generator`. The training loop re-seeds
its generator before each step with `derive(seed, stream, step)`, so the draws of a step depend on
its number alone: a resumed training needs no saved random state to repeat them.
"""

import hashlib

import torch


def derive(seed: int, *path: str | int) -> int:
    """Returns a 63-bit seed for one named place below `seed`.

    Distinct paths give independent streams: ``derive(0, "views", 7)`` and
    ``derive(0, "weights")`` share nothing.
    """
    text = "/".join(str(part) for part in (seed, *path))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(seed: int, *path: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """Returns a generator on `device`, seeded with ``derive(seed, *path)``."""
    return torch.Generator(device=device).manual_seed(derive(seed, *path))
