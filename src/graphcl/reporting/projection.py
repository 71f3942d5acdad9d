"""A map of the embeddings: two coordinates per node, by UMAP or by principal components.

The two halves of UMAP, the fuzzy graph and the layout, are called separately. This way they use the
neighbours that the report has searched already, and every random draw depends on the seed.
"""

import logging
import warnings
from typing import Any

import numpy as np

from graphcl.arrays import Floats, Integers
from graphcl.errors import MissingExtraError, option, require
from graphcl.evaluation.unsupervised import unit_rows
from graphcl.seeding import derive

METHODS = ("umap", "pca")
NEIGHBOURS = 15
FEWEST = 8  # points that UMAP needs
MIN_DISTANCE = 0.25  # UMAP's default is 0.1; more space lets users see and click inside clusters


_log = logging.getLogger(__name__)


def principal(z: Any, components: int) -> Floats:
    """Returns the first principal components of `z`, ``[N, components]``.

    The covariance is summed in float64, so that the result does not depend on the order of rows.
    An eigenvector has no sign of its own, so its largest entry is made positive.
    """
    z = np.asarray(z, dtype=np.float32)
    mean = z.mean(axis=0, dtype=np.float64).astype(np.float32)
    covariance = np.zeros((z.shape[1], z.shape[1]))
    for start in range(0, len(z), 8192):
        block = (z[start : start + 8192] - mean).astype(np.float64)
        covariance += block.T @ block
    _, vectors = np.linalg.eigh(covariance)
    vectors = vectors[:, ::-1][:, :components]
    largest = np.abs(vectors).argmax(axis=0)
    vectors = vectors * np.where(vectors[largest, np.arange(vectors.shape[1])] < 0, -1, 1)
    coordinates: Floats = (z - mean) @ vectors.astype(np.float32)
    missing = components - coordinates.shape[1]
    return np.pad(coordinates, ((0, 0), (0, missing))) if missing > 0 else coordinates


def project(
    z: Any, neighbours: Integers, cosines: Floats, *, method: str = "umap", seed: int = 0
) -> Floats:
    """Returns a place on the plane for every row of `z`, ``[N, 2]``.

    Args:
        z: embeddings ``[N, dim]``.
        neighbours: the nearest rows of each row, itself left out, ``[N, k]``.
        cosines: their similarities.
        method: ``umap``, or ``pca``: the first two principal components of rows scaled to length 1.
        seed: seed of UMAP; the same seed gives the same map.
    """
    start = principal(unit_rows(z), 2)
    if usable_method(method, len(start)) == "pca":
        return start
    return _umap(start, neighbours, cosines, seed)


def usable_method(method: str, num_points: int) -> str:
    """Returns `method`, or ``pca`` if there are too few points for UMAP."""
    require(method in METHODS, "report", "map", " or ".join(METHODS), method)
    return method if num_points >= FEWEST else "pca"


def _umap(start: Floats, neighbours: Integers, cosines: Floats, seed: int) -> Floats:
    umap = _import_umap()
    n = len(start)
    k = min(NEIGHBOURS - 1, neighbours.shape[1])
    # UMAP counts a row as its own first neighbour.
    numbers = np.column_stack([np.arange(n), neighbours[:, :k]]).astype(np.int32)
    far = np.maximum(1 - cosines[:, :k], 0)
    distances = np.column_stack([np.zeros(n), far]).astype(np.float32)
    epochs = 500 if n <= 10_000 else 200 if n <= 50_000 else 100  # UMAP's own to 50,000
    _log.info("UMAP: %d nodes, %d neighbours, %d epochs", n, k + 1, epochs)
    random = np.random.RandomState(derive(seed, "umap") % 2**32)
    spread = np.abs(start).max()
    start = start * np.float32(10 / spread if spread > 0 else 1)
    # The noise moves equal points apart.
    start = start + random.normal(scale=1e-4, size=start.shape).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph, _, _ = umap.fuzzy_simplicial_set(
            start, k + 1, random, "cosine", knn_indices=numbers, knn_dists=distances
        )
        a, b = umap.find_ab_params(1.0, MIN_DISTANCE)
        layout, _ = umap.simplicial_set_embedding(
            start,
            graph,
            n_components=2,
            initial_alpha=1.0,
            a=a,
            b=b,
            gamma=1.0,
            negative_sample_rate=5,
            n_epochs=epochs,
            init=start,
            random_state=random,
            metric="euclidean",
            metric_kwds={},
            densmap=False,
            densmap_kwds={},
            output_dens=False,
        )
    return np.asarray(layout, dtype=np.float32)


def _import_umap() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that TensorFlow is missing
            import umap.umap_ as umap
    except ImportError as error:
        other = f"a UMAP map ({option('layout', 'pca')} needs none)"
        raise MissingExtraError(other, "report") from error
    return umap
