import numpy as np
import pytest

from graphcl.answers import grouping
from graphcl.answers.grouping import cluster
from graphcl.errors import GraphError, ParameterError
from graphcl.graphs.graph import Graph
from graphcl.tabular.originals import Original
from tests.partitioned.test_embeddings import make_shards


def blobs(seed=0, sizes=(60, 40, 25), spread=0.15, dim=8):
    random = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    z = np.eye(len(sizes), dim)[truth] + random.normal(size=(len(truth), dim)) * spread
    order = random.permutation(len(truth))
    return (z[order] * random.uniform(0.1, 9, (len(truth), 1))).astype(np.float32), truth[order]


def same_partition(a, b):
    return (
        len({*zip(a.tolist(), b.tolist(), strict=True)}) == len(np.unique(a)) == len(np.unique(b))
    )


def test_the_number_of_groups_is_found_and_they_are_numbered_by_size():
    z, truth = blobs()
    found = cluster(z)
    assert found.sizes == (60, 40, 25)
    assert same_partition(found.assigned, truth)
    assert found.silhouette == max(found.tried.values()) == found.tried[3]
    assert found.columns()["group"].tolist() == (found.assigned + 1).tolist()


@pytest.mark.parametrize("method", ["kmeans", "hdbscan"])
def test_closeness_and_typical_nodes_are_those_of_a_plain_loop(method):
    z, _ = blobs()
    found = cluster(z, method=method, typical=4)
    unit = z / np.linalg.norm(z, axis=1, keepdims=True)
    for group in range(len(found)):
        members = [n for n in range(len(z)) if found.assigned[n] == group]
        centre = sum(unit[n].astype(float) for n in members)
        centre /= np.linalg.norm(centre)
        cosines = {n: float(unit[n] @ centre) for n in members}
        best = sorted(members, key=lambda n: -cosines[n])[:4]
        assert found.typical[group].tolist() == best
        for n in members:
            assert found.closeness[n] == pytest.approx(cosines[n], abs=1e-5)


def test_a_given_number_of_groups():
    z, _ = blobs()
    assert len(cluster(z, 5)) == 5
    assert list(cluster(z, 5).tried) == [5]


def test_hdbscan_leaves_out_nodes_between_groups():
    z, truth = blobs(spread=0.05)
    odd = np.random.default_rng(1).normal(size=(6, 8)).astype(np.float32)
    found = cluster(np.concatenate([z, odd]), method="hdbscan", least=10)
    assert found.sizes[0] >= 55
    assert len(found) == 3
    assert same_partition(found.assigned[:125], truth)
    assert (found.assigned[125:] == -1).sum() >= 3
    outside = found.assigned == -1
    assert np.isnan(found.closeness[outside]).all()
    table = found.columns()
    assert {table["closeness"][n] for n in np.flatnonzero(outside)} == {None}
    assert set(table["group"][outside].tolist()) == {0}


def test_of_many_nodes_hdbscan_sees_a_sample_and_the_others_join(monkeypatch):
    monkeypatch.setattr(grouping, "MOST_FITTED", 60)
    monkeypatch.setattr(grouping, "_BLOCK", 7)
    z, truth = blobs(spread=0.05)
    found = cluster(z, method="hdbscan", least=5)
    assert same_partition(found.assigned, truth)


def test_embeddings_that_coincide_are_one_group():
    found = cluster(np.ones((20, 3)))
    assert found.sizes == (20,)
    assert found.silhouette is None


def test_ids_of_a_graph_and_the_same_seed():
    z, _ = blobs()
    ids = [f"n{n}" for n in range(125)]
    graph = Graph.from_edge_index(np.zeros((2, 0), int), np.ones((125, 1)), node_ids=ids)
    first, second = cluster(z, graph=graph, seed=5), cluster(z, graph=graph, seed=5)
    assert first.columns()["id"].tolist() == ids
    np.testing.assert_array_equal(first.assigned, second.assigned)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_any_seed_and_a_sample_will_do(seed, monkeypatch):
    monkeypatch.setattr(grouping, "SAMPLE", 60)
    z, truth = blobs()
    assert same_partition(cluster(z, seed=seed).assigned, truth)


@pytest.mark.parametrize("method", ["kmeans", "hdbscan"])
def test_clear_groups_are_found_again_and_noise_is_not(method):
    z, _ = blobs(spread=0.05)
    stable = cluster(z, method=method).stability
    assert stable.agreement > 0.9
    assert min(stable.groups) > 0.9
    noise = np.random.default_rng(0).normal(size=(400, 16))
    loose = cluster(noise, 6).stability
    assert loose.agreement < 0.5
    assert (loose.times, len(loose.groups)) == (grouping.AGAIN, 6)
    assert cluster(z[:5], 3).stability is None  # halves of five nodes have no three groups


def test_stability_is_that_of_plain_loops(monkeypatch):
    """Jaccard indices with the most similar group, of partitions that are recorded on the way."""
    z = np.random.default_rng(1).normal(size=(80, 5)).astype(np.float32)
    again, partition = [], grouping._partition

    def recorded(unit, *how):
        found = partition(unit, *how)
        again.append((unit, found[0]))
        return found

    monkeypatch.setattr(grouping, "_partition", recorded)
    groups = cluster(z, 4)
    (unit, _), *rest = again
    assert len(rest) == groups.stability.times
    row = {one.tobytes(): place for place, one in enumerate(unit)}
    means = []
    for group in range(4):
        best = []
        for half, found in rest:
            old = {n for n, one in enumerate(half) if groups.assigned[row[one.tobytes()]] == group}
            new = [{n for n in range(len(half)) if found[n] == other} for other in range(4)]
            best.append(max(len(old & one) / len(old | one) for one in new))
        means.append(np.mean(best))
    assert groups.stability.groups == pytest.approx(means)


def test_profiles_are_of_the_graph_or_of_given_columns():
    z, truth = blobs()
    x = np.eye(3)[truth]
    graph = Graph.from_edge_index(np.array([[0], [1]]), x, y=truth)
    found = cluster(z, graph=graph)
    for group, some in enumerate(found.profiles):
        kept = truth[found.assigned == group][0]
        assert {one.what for one in some if one.effect > 0} == {
            f"feature {kept}",
            f"label = class {kept}",
        }
    own = Original("age", "number", 10.0 * truth + np.random.default_rng(0).normal(size=125))
    (first, *_) = cluster(z, graph=graph, columns=[own]).profiles
    assert [one.what for one in first] == ["age"]
    assert cluster(z).profiles == ((), (), ())


def test_shards_are_grouped_from_disk_as_in_memory(tmp_path, monkeypatch):
    z, _ = blobs()
    make_shards(tmp_path / "z.npy", z, [0, 50, 125], ".npy", np.arange(125))
    monkeypatch.setattr(grouping, "_ROWS", 17)
    for method in ("kmeans", "hdbscan"):
        whole, parts = cluster(z, method=method), cluster(tmp_path / "z.npy", method=method)
        np.testing.assert_array_equal(whole.assigned, parts.assigned)
        np.testing.assert_allclose(whole.closeness, parts.closeness)
        assert whole.stability == parts.stability


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"method": "ward"}, ParameterError, "method must be kmeans or hdbscan"),
        ({"count": 1}, ParameterError, "count must be a whole number of at least 2"),
        ({"count": np.eye(3)}, ParameterError, "count must be a whole number"),
        ({"count": 3, "method": "hdbscan"}, ParameterError, "count must be left out with hdbscan"),
        ({"least": 3}, ParameterError, "least must be None with kmeans"),
        ({"count": 30}, GraphError, "20 nodes are too few for 30 groups"),
        ({"count": 3}, GraphError, "fewer than 3 distinct embeddings"),
    ],
)
def test_bad_input(given, error, message):
    with pytest.raises(error, match=message):
        cluster(np.ones((20, 3)), **given)
    with pytest.raises(GraphError, match="not finite"):
        cluster(np.full((20, 3), np.nan))
