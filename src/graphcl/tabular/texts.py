r"""Columns of text: hashed TF-IDF, reduced to a few numbers by a singular value decomposition.

A text becomes counts of its words and of pairs of words that follow each other, in `WORDS` places
by a hash, so that no vocabulary is kept. Counts are dampened, :math:`1 + \log n`, weighted by
:math:`\log\frac{1 + N}{1 + n_w} + 1` and divided by the row's length. The features are the
products with the leading axes of the training rows.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

WORDS = 1 << 14
FEATURES = 64
DENSE_ROWS = 2_048  # of texts or of words: up to so many, the axes are computed exactly
RANK = 1e-10  # squared singular values below this share of the largest are none
FIT_ROWS = 50_000  # texts that the axes are fitted to, evenly spaced; more would change little

Floats = npt.NDArray[np.float32]


def counts_of(texts: Iterable[str | None]) -> scipy.sparse.csr_array:
    """Returns dampened counts of words and pairs of words, ``[texts, WORDS]``."""
    from sklearn.feature_extraction.text import HashingVectorizer

    hashing = HashingVectorizer(
        n_features=WORDS, alternate_sign=False, norm=None, ngram_range=(1, 2), dtype=np.float32
    )
    counts = scipy.sparse.csr_array(hashing.transform([text or "" for text in texts]))
    counts.data = np.log1p(counts.data - 1) + np.float32(1)
    return counts


def fit_text(texts: list[str | None], rows: int) -> tuple[Floats, Floats]:
    """Returns the weights of words and the axes ``[features, WORDS]``.

    Args:
        texts: those of the training rows, or evenly spaced ones among them.
        rows: number of training rows; with few of them there are fewer features.
    """
    counts = counts_of(texts)
    found = np.bincount(counts.indices, minlength=WORDS)
    idf = (np.log((1 + counts.shape[0]) / (1 + found)) + 1).astype(np.float32)
    weighted = _weighted(counts, idf)
    places = np.flatnonzero(found)  # those without a word take no part
    width = min(FEATURES, rows - 1, weighted.shape[0] - 1, len(places) - 1)
    if width < 1:
        axes = np.zeros((1, WORDS), np.float32)
        axes[0, places[:1]] = 1
        return idf, axes
    found_axes = leading_axes(weighted[:, places].astype(np.float64), width)
    axes = np.zeros((len(found_axes), WORDS), np.float32)
    axes[:, places] = found_axes
    return idf, axes


def leading_axes(rows: Any, width: int) -> npt.NDArray[np.float64]:
    """Returns the leading right singular vectors of a sparse matrix, ``[at most width, columns]``.

    The same matrix gives the same axes in every call. (ARPACK goes on from vectors at random where
    the rank is below `width`, and nothing seeds them.) Axes beyond the rank are left out. The
    largest entry of an axis is positive.
    """
    columns = rows.shape[1]
    if min(rows.shape) <= DENSE_ROWS:
        wide = rows.shape[0] <= columns
        gram = (rows @ rows.T if wide else rows.T @ rows).toarray()
        values, vectors = np.linalg.eigh(gram)
        best = np.argsort(-values, kind="stable")[:width]
        best = best[values[best] > RANK * values[best[0]]]
        axes = vectors[:, best].T
        if wide:
            axes = np.asarray(rows.T @ axes.T).T / np.sqrt(values[best])[:, None]
    else:
        from sklearn.utils.extmath import randomized_svd

        _, sizes, axes = randomized_svd(
            rows, width, n_oversamples=64, n_iter=7, power_iteration_normalizer="QR", random_state=0
        )
        axes = axes[sizes**2 > RANK * sizes[0] ** 2]
    largest = axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)]
    found: npt.NDArray[np.float64] = axes * np.where(largest < 0, -1, 1)[:, None]
    return found


def text_features(texts: Iterable[str | None], idf: Floats, axes: Floats) -> Floats:
    """Returns the features ``[texts, features]``; a text without a known word has zeros."""
    found: Floats = np.asarray(_weighted(counts_of(texts), idf) @ axes.T, dtype=np.float32)
    return found


def _weighted(counts: scipy.sparse.csr_array, idf: Floats) -> scipy.sparse.csr_array:
    weighted = counts.copy()
    weighted.data = weighted.data * idf[weighted.indices]
    squares = np.asarray(weighted.multiply(weighted).sum(axis=1)).reshape(-1)
    lengths = np.sqrt(np.repeat(squares, np.diff(weighted.indptr)))
    weighted.data = (weighted.data / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return weighted


def spaced(batches: Iterator[tuple[int, Any]], rows: npt.NDArray[np.int64]) -> list[str | None]:
    """Returns the texts in the rows, which ascend, from batches of a column."""
    chosen: list[str | None] = []
    for first, column in batches:
        inside = rows[(rows >= first) & (rows < first + len(column))] - first
        chosen += column.take(inside).to_pylist()
    return chosen
