import builtins

import numpy as np
import pytest
from sklearn.decomposition import PCA

from graphcl.errors import MissingExtraError, ParameterError
from graphcl.evaluation.unsupervised import nearest
from graphcl.reporting.projection import principal, project


def blobs(n=240, seed=0):
    random = np.random.default_rng(seed)
    y = np.arange(n) % 3
    return (random.normal(size=(n, 10)) * 0.3 + np.eye(3, 10)[y] * 3).astype(np.float32), y


def test_principal_components_are_scikit_learns_up_to_sign():
    z, _ = blobs()
    ours, theirs = principal(z, 3), PCA(3).fit_transform(z)
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), atol=1e-3)
    assert principal(np.ones((4, 1)), 2).shape == (4, 2)


def test_umap_keeps_clusters_together_and_repeats_itself():
    z, y = blobs()
    near = nearest(z, 15)
    places = project(z, *near, seed=3)
    assert places.shape == (240, 2)
    assert np.isfinite(places).all()
    centres = np.array([places[y == c].mean(axis=0) for c in range(3)])
    own = np.linalg.norm(places - centres[y], axis=1).mean()
    apart = np.linalg.norm(centres[0] - centres[1])
    assert apart > 3 * own
    assert np.array_equal(project(z, *near, seed=3), places)
    assert not np.array_equal(project(z, *near, seed=4), places)


def test_few_points_need_no_umap():
    for n in (1, 2, 5):
        z = np.eye(n, 4, dtype=np.float32)
        assert project(z, *nearest(z, 15)).shape == (n, 2)


def test_bad_method_and_missing_extra(monkeypatch):
    z, _ = blobs(30)
    near = nearest(z, 5)
    with pytest.raises(ParameterError, match="map must be umap or pca; got 'tsne'"):
        project(z, *near, method="tsne")
    real = builtins.__import__

    def without(name, *rest, **keywords):
        if name.startswith("umap"):
            raise ImportError(name)
        return real(name, *rest, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"layout='pca' needs none.*graphcl\[report\]"):
        project(z, *near)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_any_seed_will_do(seed):
    z = blobs(60)[0]
    places = project(z, *nearest(z, 10), seed=seed)
    assert places.shape == (60, 2)
    assert np.isfinite(places).all()
