"""What sets a group apart: effects, rates, and that hardly anything is listed where nothing is."""

import math

import numpy as np
import pytest
import scipy.sparse
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import group_profiles
from benchmarks.rows import read
from graphcl.answers import profiles as module
from graphcl.answers.profiles import FEWEST, LEAST, LEVEL, Difference, profiles
from graphcl.tabular.originals import Original


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
    """Cliff's delta, log odds, rank-sum and Fisher's tests, Benjamini and Hochberg's rates."""
    monkeypatch.setattr(module, "OF_COLUMN", {"category": 99})
    groups, columns = town
    tests = []  # key, effect, its size in standard deviations, p

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
            strength = abs(odds) * math.sqrt(3) / math.pi
            tests.append(((group, key), odds, strength, min(1, 2 * min(sides))))

    everyone = [True] * len(groups)
    for one in columns:
        if one.kind == "number":
            lost = np.isnan(one.values)
            for group in range(3):
                x, y = one.values[(groups == group) & ~lost], one.values[(groups != group) & ~lost]
                pairs = [np.sign(a - b) for a in x for b in y]
                delta = sum(pairs) / len(pairs)
                p = scipy.stats.mannwhitneyu(x, y, method="asymptotic").pvalue
                p = 1.0 if np.ptp(one.values[~lost]) == 0 else p
                r = scipy.stats.rankdata([*x, *y])
                a, b = r[: len(x)], r[len(x) :]
                pooled = math.sqrt((a.var() * len(a) + b.var() * len(b)) / (len(r) - 2))
                strength = abs(a.mean() - b.mean()) / pooled if pooled else 0.0
                tests.append(((group, one.name), delta, strength, p))
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
    tests.sort(key=lambda test: test[3])
    rates, lowest = {}, 1.0
    for place in range(len(tests), 0, -1):  # from the largest p down
        lowest = min(lowest, tests[place - 1][3] * len(tests) / place)
        rates[tests[place - 1][0]] = lowest
    expected = {
        key: (effect, rates[key])
        for key, effect, strength, _ in tests
        if rates[key] <= LEVEL and strength >= LEAST
    }
    found = {}
    for group, some in enumerate(profiles(groups, columns, most=99)):
        for one in some:
            found[group, one.what] = (one.effect, one.q)
    assert len(found) > 6
    assert found.keys() == expected.keys()
    for key, pair in found.items():
        assert pair == pytest.approx(expected[key], rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("kind", ["lognormal", "pareto", "counts", "rare binary", "categories"])
def test_columns_that_say_nothing_are_hardly_ever_listed(kind):
    """Something is listed in at most 5 % of tables; by Welch's test it was in up to 60 %."""
    listed = 0
    for seed in range(40):
        groups, columns = group_profiles.table(kind, 100, seed, effect=False)
        listed += any(profiles(groups, columns))
    assert listed <= 6  # P(more | 5 %) < 1 %


def test_the_committed_simulation_holds_the_rate_and_finds_what_is_there():
    rows = read(group_profiles.RESULTS)
    noise = [row for row in rows if row["what"] == "no effect"]
    assert len(noise) == len(group_profiles.KINDS) * len(group_profiles.SIZES)
    assert min(row["tables"] for row in noise) >= 1000
    assert max(row["listed"] for row in noise) <= 0.06
    found = [row for row in rows if row["what"] == "effect" and row["nodes"] >= 1000]
    assert min(row["listed"] for row in found) >= 0.95


@pytest.mark.parametrize(("inside", "nodes", "rare"), [(5, 300, 6), (12, 60, 3), (150, 300, 4)])
def test_rare_values_in_small_groups_keep_their_error(inside, nodes, rare):
    """The p of every placing of a few rare values: P(p ≤ a) ≤ a, at every a."""
    values = np.zeros(nodes)
    values[:rare] = np.arange(1, rare + 1) + 1.0
    ranks = scipy.stats.rankdata(values) - (nodes + 1) / 2
    random = np.random.default_rng(0)
    groups = np.array([random.permutation(nodes)[:inside] for _ in range(4000)])
    sums = ranks[groups].sum(axis=1)
    p = module._rank_sum_p(ranks, sums, np.full(len(sums), float(inside)))
    for level in (0.2, 0.05, 0.01, 0.002):
        share = (p <= level).mean()
        assert share <= level + 3 * math.sqrt(level / len(p))


def test_numbers_are_told_by_medians_and_by_means_where_these_are_equal():
    random = np.random.default_rng(0)
    groups = np.repeat([0, 1], 200)
    pay = random.lognormal(groups, 2)
    calls = random.poisson(0.1 + 0.3 * groups).astype(float)
    vip = (random.random(400) < 0.1 + 0.4 * groups).astype(float)
    columns = [Original(*one) for one in [("pay", "number", pay), ("calls", "number", calls)]]
    (first, _) = profiles(groups, [*columns, Original("vip", "number", vip)])
    told = {one.what: one for one in first}
    assert told["pay"].average == "median"
    assert told["pay"].inside == np.median(pay[:200])
    assert told["pay"].outside == np.median(pay[200:])
    assert told["calls"].average == "mean"
    assert told["calls"].inside == pytest.approx(calls[:200].mean())
    assert told["calls"].effect < 0
    assert told["vip = 1"].inside == vip[:200].sum()


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
    monkeypatch.setattr(module, "BLOCK", 200)
    assert profiles(groups, columns) == whole


def test_one_group_and_no_column_have_no_profile():
    assert profiles(np.zeros(9, int), [Original("v", "number", np.arange(9.0))]) == ((),)
    assert profiles(np.array([0, 1]), []) == ((), ())


def test_a_difference_is_told_as_people_write_numbers():
    told = Difference("pay", "number", 61_861.4, 9, 0.01234, 7, 0.25, 0.001, "median")
    assert str(told) == ("pay: median 61,861 against 0.01234 (Cliff's delta +0.25; 9 and 7 nodes)")
    told = Difference("since", "date", 18321.0, 9, 0.0, 7, -0.5, 0.001, "mean")
    assert str(told) == (
        "since: mean 2020-02-29 against 1970-01-01 (Cliff's delta -0.50; 9 and 7 nodes)"
    )
    told = Difference("town = Ulm", "category", 41.0, 52, 1088.0, 2750, 2.87, 0.001)
    assert str(told) == "town = Ulm: 41 of 52 against 1,088 of 2,750 (log odds +2.9)"
