"""How far embeddings moved between two versions of a run: nodes, neighbourhoods, regions.

Large graphs are measured on a sample; the same seed draws the same nodes.
"""

import warnings
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.cluster.vq import kmeans2, vq

from graphcl.arrays import Array
from graphcl.evaluation.unsupervised import by_size, nearest, sampled_rows, unit_rows
from graphcl.seeding import derive

SAMPLE = 2000  # nodes that are compared with each other
NEIGHBOURS = 10
REGIONS = 8
ROUNDS = 20  # of k-means
FITTED = 500  # points that its centres are fitted to
EDGES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0)  # of the histogram of moves
SHOWN = 10  # nodes that are listed


@dataclass(frozen=True)
class Region:
    """A cluster of the old embeddings.

    Attributes:
        nodes: measured nodes in it.
        embedded: which share of them was embedded again.
        moved: their median move, as `Drift.moved` has it.
        kept: which share of their nearest neighbours they kept.
        joined: new nodes that are nearest to it.
        examples: rows, in the new version, of nodes near its centre.
    """

    nodes: int
    embedded: float
    moved: float
    kept: float
    joined: int
    examples: tuple[int, ...]


@dataclass(frozen=True)
class Drift:
    """How far embeddings moved.

    Attributes:
        common: nodes that both versions have.
        embedded: how many of these were embedded again.
        measured: how many nodes were compared.
        moved: quantiles of the distance between a node's new and old embedding, divided by the
            length of the old one, over nodes that were embedded again: ``median``, ``p90``,
            ``largest``; None where there is no such node.
        histogram: how many of these nodes moved at most 0, 1, 5, 10, 20, 50, 100 % and more.
        neighbours: k.
        kept: which share of its k nearest nodes by cosine a node kept, over all measured nodes.
        kept_embedded: the same over those that were embedded again; None if none was measured.
        regions: clusters of the old embeddings, largest first.
        farthest: rows, in the new version, of the nodes that moved farthest, and how far.
    """

    common: int
    embedded: int
    measured: int
    moved: dict[str, float] | None
    histogram: tuple[int, ...]
    neighbours: int
    kept: float | None
    kept_embedded: float | None
    regions: tuple[Region, ...]
    farthest: tuple[tuple[int, float], ...]

    def to_json(self, names: Any) -> dict[str, Any]:
        """Returns the drift as JSON has it; `names` returns the id of a row."""
        found = asdict(self)
        for region in found["regions"]:
            region["examples"] = [names(row) for row in region["examples"]]
        found["histogram"] = {"up_to": [*EDGES, None], "nodes": list(self.histogram)}
        found["farthest"] = [{"id": names(row), "moved": far} for row, far in self.farthest]
        return found

    def lines(self) -> list[str]:
        """Returns a few lines for a terminal."""
        lines = []
        if self.moved is not None:
            shares = ", ".join(f"{key} {100 * value:.1f} %" for key, value in self.moved.items())
            lines.append(f"moved, of {self.embedded:,} known nodes embedded again: {shares}")
        if self.kept is not None:
            own = ""
            if self.kept_embedded is not None:
                own = f"; {100 * self.kept_embedded:.1f} % of nodes embedded again"
            nearest_kept = f"{100 * self.kept:.1f} % of the {self.neighbours} nearest"
            lines.append(f"neighbours kept: {nearest_kept}{own}")
        changed = [(one.kept, place) for place, one in enumerate(self.regions, 1) if one.kept < 1]
        if changed:
            kept, place = min(changed)
            lines.append(
                f"region that changed most: {place} of {len(self.regions)} "
                f"({100 * kept:.1f} % of neighbours kept)"
            )
        return lines


def measure_drift(
    old: Any, new: Any, kept: Array, embedded: Array, *, seed: int = 0, sample: int = SAMPLE
) -> Drift:
    """Compares the embeddings of two versions.

    Args:
        old: embeddings of the old version, ``[N, dim]``; they may be mapped.
        new: those of the new one: first the nodes that stayed, in order, then new ones.
        kept: the old rows of the nodes that stayed, ascending.
        embedded: rows of `new` that were embedded again, ascending.
        seed: decides samples and clusters.
        sample: how many nodes are compared at most.
    """
    common = len(kept)
    again = np.asarray(embedded)[np.asarray(embedded) < common]
    rows = sampled_rows(common, seed, sample)
    moving = again[sampled_rows(len(again), seed, sample)]
    far = _moves(np.asarray(old[kept[moving]]), np.asarray(new[moving]))
    first, second = np.asarray(old[kept[rows]]), np.asarray(new[rows])
    share, k = np.ones(len(rows)), min(NEIGHBOURS, len(rows) - 1)
    if k >= 1:
        before, after = (nearest(one, k)[0] for one in (first, second))
        share = (before[:, :, None] == after[:, None, :]).any(axis=2).mean(axis=1)
    of_again = np.isin(rows, again)
    order = np.argsort(-far, kind="stable")[:SHOWN]
    quantiles = np.quantile(far, [0.5, 0.9, 1]).tolist() if len(far) else []
    return Drift(
        common,
        len(again),
        len(rows),
        dict(zip(("median", "p90", "largest"), quantiles, strict=True)) if quantiles else None,
        tuple(np.bincount(np.searchsorted(EDGES, far), minlength=len(EDGES) + 1).tolist()),
        max(k, 0),
        float(share.mean()) if k >= 1 else None,
        float(share[of_again].mean()) if k >= 1 and of_again.any() else None,
        _regions(first, second, new[common:], rows, share, of_again, seed, sample),
        tuple((int(moving[place]), float(far[place])) for place in order.tolist()),
    )


def _moves(old: Array, new: Array) -> Array:
    """Returns how far rows are from their old place, in old lengths."""
    before = old.astype(np.float64)
    away, length = np.linalg.norm(new - before, axis=1), np.linalg.norm(before, axis=1)
    return np.asarray(np.divide(away, length, out=np.where(away > 0, 1.0, 0.0), where=length > 0))


def _regions(
    first: Array,
    second: Array,
    new: Any,
    rows: Array,
    share: Array,
    again: Array,
    seed: int,
    sample: int,
) -> tuple[Region, ...]:
    """Describes the clusters of the old embeddings, and where new nodes are."""
    if len(first) < 2:
        return ()
    assigned = divide(unit_rows(first), REGIONS, seed=seed)
    sizes = np.bincount(assigned).tolist()
    unit = unit_rows(second)
    centres = unit_rows(np.stack([unit[assigned == one].mean(axis=0) for one in range(len(sizes))]))
    drawn = sampled_rows(len(new), seed, sample)
    nearest_to = (unit_rows(np.asarray(new[drawn])) @ centres.T).argmax(axis=1)
    joined = np.bincount(nearest_to, minlength=len(centres)) * (len(new) / max(1, len(drawn)))
    far = _moves(first, second)
    described = []
    for number, size in enumerate(sizes):
        own = assigned == number
        typical = np.flatnonzero(own)[np.argsort(-(unit[own] @ centres[number]))[:3]]
        described.append(
            Region(
                size,
                float(again[own].mean()),
                float(np.median(far[own])),
                float(share[own].mean()),
                round(float(joined[number])),
                tuple(rows[typical].tolist()),
            )
        )
    return tuple(described)


def divide(points: Array, count: int, *, seed: int) -> Array:
    """Divides points into regions by k-means; returns the region of each, 0 the largest.

    Centres begin far from each other (k-means++). It takes milliseconds for a few thousand points,
    a tenth of what scikit-learn takes, by which `graphcl.evaluation.unsupervised.cluster` divides.

    Args:
        points: ``[n, dim]``.
        count: of regions; fewer, if there are fewer different points.
        seed: decides the first centres.
    """
    random = np.random.default_rng(derive(seed, "regions"))
    every = np.asarray(points, np.float64)
    some = every[sampled_rows(len(every), seed, FITTED)]
    count = min(count, len(np.unique(some, axis=0)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a region that has lost all its points is left out below
        centres, _ = kmeans2(some, count, iter=ROUNDS, minit="++", seed=random)
    return by_size(np.unique(vq(every, centres)[0], return_inverse=True)[1])
