"""What labels teach: answers for the nodes of a graph, and for nodes that it lacks.

A folder may keep it: what was learned is numbers, and is read again by whoever learns from the same
labels and embeddings. The file is data (safetensors, with JSON in its header), never code, and says
by a digest what it was learned from.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from graphcl.answers.evidence import NEAR, SURROUNDINGS, Evidence, gather_evidence
from graphcl.answers.inputs import KnownLabels
from graphcl.arrays import Array, blocks
from graphcl.errors import RunError
from graphcl.evaluation.calibration import CalibratedProbe, Fit, Recall, fit_calibrated
from graphcl.evaluation.regression import NumberProbe, fit_regression
from graphcl.evaluation.smoothing import Smoothing
from graphcl.files.arrays import read_digested, with_digest
from graphcl.files.atomic import write_whole

SMOOTHED = "predictions of neighbours"
KEPT = "labels.safetensors"
_BLOCK = 1 << 16  # nodes that are answered at a time


@dataclass(frozen=True, eq=False)
class Learned:
    """A probe, what it looks at, and what smooths its probabilities.

    Answers are probabilities, float32 ``[rows, outputs]``. Of a number they are its value and the
    ends of its interval, ``[rows, 3]``.

    Attributes:
        known: the labels.
        labelled: numbers of the labelled nodes, ascending.
        evidence: the tables.
        probe: the regressions.
        smoothing: over edges; None if there is none.
    """

    known: KnownLabels
    labelled: Array
    evidence: Evidence
    probe: CalibratedProbe | NumberProbe
    smoothing: Smoothing | None

    @property
    def weights(self) -> dict[str, float]:
        """How much each table counts, and how much the predictions of neighbours; together 1."""
        own = 1.0 if self.smoothing is None else float(self.smoothing.shares[0])
        return {name: own * one for name, one in self.probe.weights.items()} | {SMOOTHED: 1 - own}

    def of_rows(self, rows: Array, *, without: str | None = None) -> Array:
        """Returns the answers for nodes, labelled or not.

        Args:
            rows: their numbers.
            without: a part of what is known of them that is left out; see `Evidence.without`.
        """
        found = []
        for block in blocks(max(1, len(rows)), _BLOCK):
            some = rows[block]
            inputs, near = self.evidence.take(some), None
            if without is not None:
                inputs = self.evidence.without(without, inputs)
            alone = self.smoothing is None or without in (NEAR, SURROUNDINGS)
            if self.smoothing is not None and self.evidence.around is not None and not alone:
                near = self.evidence.around.means[some] @ self.smoothing.near
            found.append(self._answers(inputs, near))
        return np.concatenate(found)

    def with_held_out(self, answers: Array, rows: Array, held: Array | None = None) -> Array:
        """Returns answers in which those of labelled nodes are by a probe that has not seen them.

        An interval keeps its width. `held` are such answers, if another probe gave them.
        """
        held = self.probe.held_out if held is None else held
        held = held.reshape(len(held), -1)
        place = np.searchsorted(self.labelled, rows).clip(max=len(self.labelled) - 1)
        seen = (self.labelled[place] == rows) & ~np.isnan(held[place]).any(axis=1)
        found = answers.copy()
        found[seen] = held[place][seen]
        if self.known.number:
            found[seen] += answers[seen] - answers[seen, :1]
        return found

    def of_new(self, z: Array, x: Array, neighbours: Sequence[Array]) -> Array:
        """Returns the answers for nodes that the graph does not have.

        Args:
            z: their embeddings.
            x: their features.
            neighbours: the rows of the neighbours of each.
        """
        found = self._answers(self.evidence.of_new(z, x, neighbours), None)
        joined = np.array([len(some) > 0 for some in neighbours])
        if self.smoothing is not None and joined.any():
            near = self.smoothing.near
            around = np.stack([near[some].mean(axis=0) for some in neighbours if len(some)])
            found[joined] = self.smoothing.smooth(found[joined], around)
        return found

    def _answers(self, inputs: Mapping[str, Array], near: Array | None) -> Array:
        if isinstance(self.probe, NumberProbe):
            return np.stack(self.probe.predict(inputs), axis=1)
        found = self.probe.probabilities(inputs)
        return (
            found if near is None or self.smoothing is None else self.smoothing.smooth(found, near)
        )


def learn(
    z: Any,
    ids: Any,
    known: KnownLabels,
    *,
    graph: Any = None,
    parts: Mapping[str, slice] | None = None,
    level: float = 0.9,
    seed: int = 0,
    folder: Path | None = None,
) -> Learned:
    """Learns from labels. Embeddings in shards stay on disk, but for those of labelled nodes.

    Args:
        z: embeddings of all nodes.
        ids: of the nodes; they decide the folds, with the seed.
        known: the labels.
        graph: the graph, or the nodes of a type with their columns; None: embeddings alone.
        parts: which columns of the embedding are of what; see `evidence.embedding_parts`.
        level: of a number: how often it is to be within its interval.
        seed: decides the folds.
        folder: keeps what was learned of classes, if it can be written to; a number takes no time.
    """
    labelled = np.flatnonzero(known.known)
    evidence = gather_evidence(z, labelled, graph=graph, parts=parts)
    targets, smoothing = known.targets[labelled], None
    how: Any = {"seed": seed, "standard": evidence.standard, "names": ids[labelled]}
    probe: CalibratedProbe | NumberProbe
    if known.number:
        probe = fit_regression(evidence.take(labelled), targets, level=level, **how)
    else:
        around = evidence.around
        how |= {"several": known.several, "around": around}
        how |= {} if folder is None else {"recall": _kept_in(folder)}
        probe = fit_calibrated(evidence.take(labelled), targets, **how)
        smoothing = None if around is None else probe.smoothing(around, targets)
    return Learned(known, labelled, evidence, probe, smoothing)


def _kept_in(folder: Path) -> Recall:
    """Returns what reads a fit from a folder, or fits and keeps it there."""

    def recall(key: str, suits: Callable[[Fit], bool], fit: Callable[[], Fit]) -> Fit:
        with _alone(folder):  # of several that begin together, one fits, and the others read
            found = _read_fit(folder / KEPT, key)
            if found is None or not suits(found):
                found = fit()
                with suppress(OSError):  # somebody else's folder
                    _write_fit(folder / KEPT, key, found)
        return found

    return recall


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits until no other process holds a folder that can be written to, and holds it."""
    path = folder / f".{KEPT}.lock"
    with ExitStack() as stack:
        with suppress(OSError):  # somebody else's folder
            stack.enter_context(FileLock(path))
        try:
            yield
        finally:
            with suppress(OSError):  # or it goes with the lock, where no open file can be removed
                path.unlink()


def _write_fit(path: Path, key: str, fit: Fit) -> None:
    import safetensors.numpy

    about = {"labels": json.dumps({"of": key} | fit.to_json())}  # of several, the order would vary
    arrays = {name: np.ascontiguousarray(one) for name, one in fit.arrays().items()}
    write_whole(path, with_digest(safetensors.numpy.save(arrays, metadata=about)))


def _read_fit(path: Path, key: str) -> Fit | None:
    """Returns what a file keeps; None if it is not there, is damaged, or is of something else."""
    import safetensors.numpy

    try:
        content, texts = read_digested(path)
        about = json.loads(texts["labels"])
        if about["of"] != key:
            return None
        return Fit.of(safetensors.numpy.load(content), about)
    except (OSError, RunError, ValueError, KeyError, TypeError, RecursionError):
        return None
