"""What labels teach: probabilities of the nodes of a graph, and of nodes that it lacks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphcl.answers.evidence import Evidence, gather_evidence
from graphcl.answers.labels import KnownLabels
from graphcl.evaluation.calibration import CalibratedProbe, fit_calibrated
from graphcl.evaluation.smoothing import Smoothing

Array = npt.NDArray[Any]
SMOOTHED = "predictions of neighbours"
_BLOCK = 1 << 16  # nodes that are predicted at a time


@dataclass(frozen=True, eq=False)
class Learned:
    """A probe, what it looks at, and what smooths its probabilities.

    Attributes:
        labelled: numbers of the nodes that it learned from, ascending.
        evidence: the tables.
        probe: the regressions.
        smoothing: over edges; None if there is none.
    """

    labelled: Array
    evidence: Evidence
    probe: CalibratedProbe
    smoothing: Smoothing | None

    @property
    def weights(self) -> dict[str, float]:
        """How much each table counts, and how much the predictions of neighbours; together 1."""
        own = float(self.probe.shares[0]) if self.smoothing is not None else 1.0
        return {name: own * one for name, one in self.probe.weights.items()} | {SMOOTHED: 1 - own}

    def of_rows(self, rows: Array) -> Array:
        """Returns probabilities of nodes, float32 ``[rows, outputs]``.

        Those of a labelled node are by regressions that have not seen its label.
        """
        found = [np.zeros((0, self.probe.held_out.shape[1]), np.float32)]
        for start in range(0, len(rows), _BLOCK):
            some = rows[start : start + _BLOCK]
            block = self.probe.probabilities(self.evidence.take(some))
            if self.smoothing is not None and self.evidence.around is not None:
                near = self.evidence.around.means[some] @ self.smoothing.near
                block = self.smoothing.smooth(block, near)
            found.append(block)
        probability = np.concatenate(found)
        place = np.searchsorted(self.labelled, rows).clip(max=len(self.labelled) - 1)
        held = self.probe.held_out[place]
        seen = (self.labelled[place] == rows) & ~np.isnan(held).any(axis=1)
        probability[seen] = held[seen]
        return probability

    def of_new(self, z: Array, x: Array, neighbours: Sequence[Array]) -> Array:
        """Returns probabilities of nodes that the graph does not have.

        Args:
            z: their embeddings.
            x: their features.
            neighbours: the rows of the neighbours of each.
        """
        found = self.probe.probabilities(self.evidence.of_new(z, x, neighbours))
        if self.smoothing is None:
            return found
        near, joined = self.smoothing.near, np.array([len(some) > 0 for some in neighbours])
        around = [near[some].mean(axis=0) for some in neighbours if len(some)]
        if around:
            found[joined] = self.smoothing.smooth(found[joined], np.stack(around))
        return found


def learn(
    z: Any,
    ids: Any,
    known: KnownLabels,
    *,
    graph: Any = None,
    first_hop: slice | None = None,
    seed: int = 0,
) -> Learned:
    """Learns from labels. Embeddings in shards stay on disk, but for those of labelled nodes.

    Args:
        z: embeddings of all nodes.
        ids: of the nodes; they decide the folds, with the seed.
        known: the labels.
        graph: the graph, or the nodes of a type with their columns; None: embeddings alone.
        first_hop: the columns of the embedding that hold its first hop.
        seed: decides the folds.
    """
    labelled = np.flatnonzero(known.known)
    evidence = gather_evidence(z, labelled, graph=graph, first_hop=first_hop)
    targets = known.targets[labelled]
    probe = fit_calibrated(
        evidence.take(labelled),
        targets,
        several=known.several,
        seed=seed,
        standard=evidence.standard,
        names=ids[labelled],
        around=evidence.around,
    )
    around = evidence.around
    smoothing = None if around is None else probe.smoothing(around, targets)
    return Learned(labelled, evidence, probe, smoothing)
