"""Folds: every class is spread evenly, and pairs leave out both folds."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.evaluation.folds import deal, divide


@settings(deadline=None, max_examples=40)
@given(kinds=st.lists(st.integers(0, 4), min_size=2, max_size=60), folds=st.integers(2, 10))
def test_every_class_is_spread_evenly_and_no_fold_takes_all(kinds, folds):
    kinds = np.array(kinds)
    place = deal(kinds, folds, np.random.default_rng(0))
    assert place.min() >= 0
    assert place.max() < folds
    for kind in np.unique(kinds):
        sizes = np.bincount(place[kinds == kind], minlength=folds)
        assert sizes.max() - sizes.min() <= 1
    assert len(np.unique(place)) == min(folds, len(kinds)) or len(np.unique(place)) >= 2


@settings(deadline=None, max_examples=40)
@given(
    classes=st.integers(2, 5),
    size=st.integers(2, 12),
    folds=st.integers(2, 10),
    seed=st.integers(0, 9),
)
def test_classes_of_equal_size_are_equal_in_every_fold(classes, size, folds, seed):
    kinds = np.repeat(np.arange(classes), size)
    place = deal(kinds, min(folds, size), np.random.default_rng(seed))
    for fold in range(min(folds, size)):
        assert len(set(np.bincount(kinds[place == fold], minlength=classes).tolist())) == 1


@settings(deadline=None, max_examples=30)
@given(
    y=st.lists(st.integers(0, 3), min_size=4, max_size=80), several=st.booleans(), few=st.booleans()
)
def test_a_part_is_scored_by_others_and_a_pair_by_those_in_neither(y, several, few):
    targets = np.eye(4, dtype=np.int64)[np.array(y)]
    division = divide(targets, several, np.random.default_rng(0))
    if division is None:
        assert not several
        assert sum(count > 1 for count in np.bincount(y)) < 2
        return
    for train, test in division.parts:
        assert not set(train) & set(test)
        assert sorted([*train, *test]) == list(range(len(y)))
    for one, other, (train, both) in division.pairs:
        assert set(both) == set(division.parts[one][1]) | set(division.parts[other][1])
        assert not set(train) & set(both)
