"""Text features, with scikit-learn's own TF-IDF as witness."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

from graphcl.tabular import texts
from graphcl.tabular.texts import WORDS, fit_text, leading_axes, text_features

TEXTS = [
    "the sea at night",
    "the hills and the sea",
    "dogs walk in the hills",
    "code and graphs at night",
    None,
    "graphs of dogs",
]


def test_the_weights_are_scikit_learns_and_the_axes_are_orthogonal():
    idf, axes = fit_text(TEXTS, len(TEXTS))
    hashing = HashingVectorizer(
        n_features=WORDS, alternate_sign=False, norm=None, ngram_range=(1, 2)
    )
    counts = hashing.transform([text or "" for text in TEXTS])
    witness = TfidfTransformer(sublinear_tf=True)
    weighted = witness.fit_transform(counts)
    np.testing.assert_allclose(idf, witness.idf_, rtol=1e-6)
    np.testing.assert_allclose(axes @ axes.T, np.eye(len(axes)), atol=1e-5)
    found = text_features(TEXTS, idf, axes)
    np.testing.assert_allclose(found, weighted @ axes.T, atol=1e-5)
    assert not found[4].any()
    # The axes keep what they can: the Gram matrix of the texts has rank 5.
    np.testing.assert_allclose(found @ found.T, (weighted @ weighted.T).toarray(), atol=1e-4)


def test_the_same_texts_give_the_same_bits_and_few_texts_few_features():
    first, second = fit_text(TEXTS, len(TEXTS)), fit_text(TEXTS, len(TEXTS))
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one, other)
    assert fit_text(["word", "word"], 2)[1].shape == (1, WORDS)
    assert len(fit_text(["one text here"], 1)[1]) == 1


def test_equal_texts_give_the_same_bits_and_no_axis_that_no_text_has():
    """More axes than the texts have directions, some of them of equal length."""
    given = [f"{('a b c', 'd e f', 'g h i')[n % 3]} n{n % 20}" for n in range(60)]
    found = [fit_text(given, len(given)) for _ in range(3)]
    for idf, axes in found[1:]:
        assert np.array_equal(idf, found[0][0])
        assert np.array_equal(axes, found[0][1])
    features = text_features(given, *found[0])
    assert features.shape[1] < 59
    assert (np.abs(features).max(axis=0) > 1e-3).all()


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("dense", [True, False])
def test_axes_are_those_of_numpy(wide, dense, monkeypatch):
    monkeypatch.setattr(texts, "DENSE_ROWS", 1000 if dense else 1)
    random = np.random.default_rng(0)
    shape = (40, 300) if wide else (300, 40)
    rows = scipy.sparse.random_array(shape, density=0.2, rng=random, format="csr")
    found = leading_axes(rows, 7)
    expected = np.linalg.svd(rows.toarray())[2][:7]
    np.testing.assert_allclose(np.abs(np.diag(found @ expected.T)), 1, atol=1e-6)
    assert (found[np.arange(7), np.abs(found).argmax(axis=1)] > 0).all()
    np.testing.assert_array_equal(found, leading_axes(rows, 7))
