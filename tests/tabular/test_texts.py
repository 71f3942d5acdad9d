"""Text features, with scikit-learn's own TF-IDF as witness."""

import numpy as np
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

from graphcl.tabular.texts import WORDS, fit_text, text_features

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
