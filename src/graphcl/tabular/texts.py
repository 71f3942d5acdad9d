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
    from sklearn.decomposition import TruncatedSVD

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
    svd = TruncatedSVD(width, algorithm="arpack", random_state=0)
    with np.errstate(all="ignore"):  # it also divides by the variance, which may be 0
        svd.fit(weighted[:, places].astype(np.float64))
    axes = np.zeros((len(svd.components_), WORDS), np.float32)
    axes[:, places] = svd.components_
    return idf, axes


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
