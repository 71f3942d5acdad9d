import math

import numpy as np
import pytest
import scipy.sparse
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.answers import grouping
from graphcl.answers.grouping import FEWEST, LEAST, LEVEL, Difference, cluster, profiles
from graphcl.errors import GraphError, ParameterError
from graphcl.graphs.graph import Graph
from graphcl.tabular.originals import Original
from tests.partitioned.test_embeddings import make_shards


def texts(values):
    return np.array([*values, None], dtype=object)[:-1]


@pytest.fixture(scope="module")
def town():
    """Three groups: of one the ages differ, of another a category, a word, holes and a flag."""
    random = np.random.default_rng(0)
    groups = np.repeat([0, 1, 2], [120, 60, 30])
    age = random.normal(40, 10, 210) + 25 * (groups == 2)
    age[random.random(210) < 0.1] = np.nan
    colour = np.where(
        random.random(210) < 0.6 * (groups == 1), "red", random.choice(["b", "c"], 210)
    )
    colour = texts([None if random.random() < 0.05 else one for one in colour.tolist()])
    said = texts(["zoo trip" if one == 1 and random.random() < 0.7 else "trip" for one in groups])
    holes = np.where((groups == 1) & (random.random(210) < 0.5), np.nan, random.normal(size=210))
    flags = scipy.sparse.csr_array(
        np.stack([random.random(210) < 0.5, (groups == 0) & (random.random(210) < 0.4)], axis=1)
    )
    columns = [
        Original("age", "number", age),
        Original("colour", "category", colour),
        Original("said", "text", said),
        Original("holes", "number", holes),
        Original("all", "flags", flags, ("even", "first")),
        Original("same", "number", np.ones(210)),
    ]
    return groups, columns


def test_what_was_planted_is_found_with_its_counts(town):
    groups, columns = town
    found = profiles(groups, columns)
    told = [{one.what for one in some} for some in found]
    assert "age" in told[2]
    assert {"colour = red", "said has “zoo”", "holes is missing"} <= told[1]
    assert "first" in told[0]
    assert not {"even", "same", "said has “trip”"} & set.union(*told)
    red = next(one for one in found[1] if one.what == "colour = red")
    inside = [one for one, g in zip(columns[1].values, groups, strict=True) if g == 1 and one]
    assert (red.inside, red.known) == (inside.count("red"), len(inside))
    assert len([one for one in found[1] if one.kind == "category"]) <= 2  # few of one column
    assert str(red).startswith(f"colour = red: {inside.count('red')} of {len(inside)} against ")


def test_effects_and_rates_are_those_of_plain_loops(town, monkeypatch):
    """Cohen's d, log odds, Welch's and Fisher's tests, and Benjamini and Hochberg's rates."""
    monkeypatch.setattr(grouping, "OF_COLUMN", {"category": 99})
    groups, columns = town
    tests = []  # key, effect in standard deviations, p

    def share(key, flags, known):
        if sum(f for f, k in zip(flags, known, strict=True) if k) < FEWEST:
            return
        for group in range(3):
            pairs = [(f, g == group) for f, g, k in zip(flags, groups, known, strict=True) if k]
            table = [[sum(f == a and g == b for f, g in pairs) for a in (1, 0)] for b in (1, 0)]
            (a, b), (c, d) = table
            odds = math.log((a + 0.5) * (d + 0.5) / ((b + 0.5) * (c + 0.5)))
            sides = [
                scipy.stats.fisher_exact(table, alternative=way).pvalue
                for way in ("less", "greater")
            ]
            tests.append(((group, key), odds * math.sqrt(3) / math.pi, min(1, 2 * min(sides))))

    everyone = [True] * len(groups)
    for one in columns:
        if one.kind == "number":
            lost = np.isnan(one.values)
            for group in range(3):
                x, y = one.values[(groups == group) & ~lost], one.values[(groups != group) & ~lost]
                n, m = len(x), len(y)
                pooled = math.sqrt(
                    ((n - 1) * x.var(ddof=1) + (m - 1) * y.var(ddof=1)) / (n + m - 2)
                )
                d = (x.mean() - y.mean()) / pooled if pooled else 0.0
                p = scipy.stats.ttest_ind(x, y, equal_var=False).pvalue if pooled else 1.0
                tests.append(((group, one.name), d, p))
            share(f"{one.name} is missing", lost, everyone)
        elif one.kind == "flags":
            for place, item in enumerate(one.items):
                share(item, one.values.toarray()[:, place], everyone)
        else:
            known = [text is not None for text in one.values]
            share(f"{one.name} is missing", [not k for k in known], everyone)
            if one.kind == "category":
                for value in {text for text in one.values if text}:
                    share(f"{one.name} = {value}", [t == value for t in one.values], known)
            else:
                for word in ("trip", "zoo"):
                    share(f"{one.name} has “{word}”", [word in t for t in one.values], known)
    tests.sort(key=lambda test: test[2])
    rates, lowest = {}, 1.0
    for place in range(len(tests), 0, -1):  # from the largest p down
        lowest = min(lowest, tests[place - 1][2] * len(tests) / place)
        rates[tests[place - 1][0]] = lowest
    expected = {
        key: (d, rates[key]) for key, d, _ in tests if rates[key] <= LEVEL and abs(d) >= LEAST
    }
    found = {}
    for group, some in enumerate(profiles(groups, columns, most=99)):
        for one in some:
            scale = 1 if one.kind == "number" else math.sqrt(3) / math.pi
            found[group, one.what] = (one.effect * scale, one.q)
    assert len(found) > 6
    assert found.keys() == expected.keys()
    for key, pair in found.items():
        assert pair == pytest.approx(expected[key], rel=1e-6, abs=1e-12)


def test_columns_that_say_nothing_are_hardly_ever_reported():
    """The false discovery rate is 5 %: of 40 tables of pure noise, about two have a difference."""
    reported = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        groups = random.integers(0, 4, 300)
        columns = [Original(f"c{n}", "number", random.normal(size=300)) for n in range(15)]
        columns += [
            Original(f"k{n}", "category", texts(random.choice(["a", "b", "c"], 300).tolist()))
            for n in range(10)
        ]
        reported += any(profiles(groups, columns))
    assert reported <= 6  # P(more | 5 %) < 1 %


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_odd_columns_do_not_fail(data):
    n = data.draw(st.integers(2, 12))
    groups = np.array(data.draw(st.lists(st.integers(-1, 2), min_size=n, max_size=n)))
    number = st.floats(allow_infinity=False, width=32) | st.just(math.nan)
    cells = st.none() | st.text(max_size=5)
    columns = [
        Original("n", "number", np.array(data.draw(st.lists(number, min_size=n, max_size=n)))),
        Original("c", "category", texts(data.draw(st.lists(cells, min_size=n, max_size=n)))),
        Original("t", "text", texts(data.draw(st.lists(cells, min_size=n, max_size=n)))),
    ]
    found = profiles(groups, columns)
    assert len(found) == groups.max() + 1
    for one in (one for some in found for one in some):
        assert math.isfinite(one.effect)
        assert 0 <= one.q <= LEVEL
        assert str(one)


def test_many_features_are_compared_block_by_block(monkeypatch):
    random = np.random.default_rng(0)
    groups, x = random.integers(0, 3, 90), random.normal(size=(90, 7))
    x[:, 5] += 2 * groups
    columns = [Original("features", "features", x, tuple(f"f{n}" for n in range(7)))]
    whole = profiles(groups, columns)
    assert [one.what for one in whole[0]] == ["f5"]
    monkeypatch.setattr(grouping, "BLOCK", 200)
    assert profiles(groups, columns) == whole


def test_one_group_and_no_column_have_no_profile():
    assert profiles(np.zeros(9, int), [Original("v", "number", np.arange(9.0))]) == ((),)
    assert profiles(np.array([0, 1]), []) == ((), ())


def test_a_difference_is_told_as_people_write_numbers():
    told = Difference("pay", "number", 61_861.4, 9, 0.01234, 7, 1.25, 0.001)
    assert str(told) == "pay: mean 61,861 against 0.01234 (d +1.2; 9 and 7 nodes)"
    told = Difference("since", "date", 18321.7, 9, 0.0, 7, -0.5, 0.001)
    assert str(told) == "since: mean 2020-02-29 against 1970-01-01 (d -0.5; 9 and 7 nodes)"
    told = Difference("town = Ulm", "category", 41.0, 52, 1088.0, 2750, 2.87, 0.001)
    assert str(told) == "town = Ulm: 41 of 52 against 1,088 of 2,750 (log odds +2.9)"


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
