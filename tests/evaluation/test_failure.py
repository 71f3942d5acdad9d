import json
import re

import numpy as np
import pytest

from graphcl.evaluation.failure import (
    advice,
    collapse_sign,
    least_rank,
    loss_sign,
    majority_share,
    majority_sign,
)
from graphcl.evaluation.probe import linear_probe
from graphcl.graphs.graph import Graph
from graphcl.recipes import Recipe, load_recipe

SPAN = (10.0, 14.0)  # of good embeddings, and of those that carry nothing


def test_a_loss_that_falls_is_no_sign():
    assert loss_sign([13.0, 12.5, 12.2, 12.1, 12.0], SPAN) is None
    assert loss_sign([13.0, 12.5, 12.2, 12.1, 12.0]) is None


def test_a_loss_that_stays_or_rises_is_a_sign():
    assert "hardly moved" in loss_sign([12.0, 11.99, 12.0, 12.01, 11.99], SPAN).message
    assert "became worse" in loss_sign([12.0, 12.2, 12.4, 12.5, 12.6], SPAN).message
    assert "hardly moved" in loss_sign([5.0] * 9).message
    assert "learning_rate" in loss_sign([5.0] * 9).advice


def test_a_loss_that_falls_to_nothing_is_a_sign():
    sign = loss_sign([14.9, 14.2, 14.0, 13.99, 13.99], SPAN)
    assert sign.message == "the loss ends at 13.9900; embeddings that carry nothing have 14.0000"


def test_the_bound_of_the_fall_is_a_share_of_the_range():
    # Nearly without noise: the range is 4, of which 1 % is 0.04.
    fall = [12.0, 11.95, 11.95, 11.95, 11.95]
    assert loss_sign(fall, SPAN) is None
    assert loss_sign([12.0, 11.97, 11.97, 11.97, 11.97], SPAN).name == "loss"
    noisy = [12.0, *(11.95 + 0.1 * (-1) ** epoch for epoch in range(20))]
    assert loss_sign(noisy, SPAN).name == "loss"


def test_few_epochs_say_nothing():
    assert loss_sign([12.0] * 4, SPAN) is None
    assert loss_sign([], SPAN) is None


def test_embeddings_that_coincide_or_use_few_directions():
    assert collapse_sign(20.0, 0.1, allowed=64) is None
    assert "nearly coincide" in collapse_sign(20.0, 0.97, allowed=64).message
    assert "few directions" in collapse_sign(1.4, 0.0, allowed=64).message
    assert "all embeddings are 0" in collapse_sign(0.0, 0.0, allowed=0.0).message


def test_few_features_allow_few_directions():
    assert collapse_sign(1.9, 0.3, allowed=2.0) is None
    assert collapse_sign(1.9, 0.3, allowed=7.0) is not None
    assert (least_rank(3.0), least_rank(1000.0)) == (1.0, 4.0)


def test_the_majority_of_classes_and_of_labels():
    assert majority_share(np.array([3, 3, 3, 7])) == 0.75
    assert majority_share(np.array([5, 5])) == 1
    random = np.random.default_rng(0)
    y = (random.random((30, 5)) < [0.8, 0.5, 0.3, 0.1, 0.0]).astype(np.int64)
    every = []
    for code in range(1, 32):
        same = np.array([code >> label & 1 for label in range(5)])
        hits = (y * same).sum()
        every.append(2 * hits / (same.sum() * 30 + y.sum()))
    assert majority_share(y) == pytest.approx(max(every))
    assert majority_share(np.zeros((4, 3), np.int64)) == 0


def labelled(y, features, seed=0):
    n = len(y)
    order = np.random.default_rng(seed).permutation(n)
    parts = np.split(order, [n // 3, 2 * n // 3])
    names = ("train_mask", "val_mask", "test_mask")
    return Graph.from_edge_index(
        np.zeros((2, 0), int), features, y, **dict(zip(names, parts, strict=True))
    )


@pytest.mark.parametrize("classes", [2, 5])
def test_shuffled_labels_are_a_sign_and_true_ones_are_not(classes):
    random = np.random.default_rng(1)
    y = random.integers(0, classes, 600)
    z = random.normal(size=(600, 8)) + 2 * np.eye(classes, 8)[y]
    for labels, found in ((y, False), (random.permutation(y), True)):
        scores = vars(linear_probe(z, labelled(labels, z)))
        sign = majority_sign(scores)
        assert (sign is not None) == found
        assert (scores["roc_auc"] is not None) == (classes == 2)
        json.dumps(scores, allow_nan=False)
        if sign is not None:
            assert sign.name == "majority"
            assert "--method raw" in sign.advice


def test_a_rare_class_that_is_ranked_is_no_sign():
    random = np.random.default_rng(2)
    y = (random.random(900) < 0.05).astype(np.int64)
    z = random.normal(size=(900, 4)) + 0.7 * y[:, None]
    result = linear_probe(z, labelled(y, z))
    assert result.accuracy <= result.majority + 0.01  # the probe gives next to all the other class
    assert result.roc_auc > 0.7
    assert majority_sign(vars(result)) is None


def test_nothing_is_said_of_what_cannot_be_judged():
    scores = {"accuracy": 0.3, "majority": 0.5, "roc_auc": None, "nodes": (10, 10, 100)}
    assert majority_sign(scores).name == "majority"
    assert majority_sign(None) is None
    assert majority_sign({key: scores[key] for key in scores if key != "majority"}) is None
    assert majority_sign(scores | {"nodes": (5, 5, 5)}) is None
    assert majority_sign(scores | {"majority": 1.0}) is None
    assert majority_sign(scores | {"val_micro_f1": 0.2}) is None
    several = {"accuracy": {"mean": 0.9, "std": 0.01}, "majority": 0.5, "nodes": (10, 10, 100)}
    assert majority_sign(several) is None
    assert majority_sign(several | {"accuracy": {"mean": 0.5, "std": 0.01}}) is not None


def test_a_sign_is_one_sentence_and_what_to_try():
    sign = loss_sign([5.0] * 9)
    assert str(sign) == f"{sign.message}. Try {sign.advice}."
    assert vars(sign) == {"name": "loss", "message": sign.message, "advice": sign.advice}


@pytest.mark.parametrize("key", ["encoder", "feature_scaling"])
def test_advice_names_nothing_that_is_in_use(key):
    value = {"encoder": "residual", "feature_scaling": "auto"}[key]
    for sign in ("loss", "collapse", "majority"):
        named = f"{key}={value}" in advice(sign, {key: "other"})
        assert named == (f"{key}={value}" in advice(sign))
        assert f"{key}={value}" not in advice(sign, {key: value})
    nothing = {"edge_drop": 0.0, "feature_drop": 0.0}
    assert "edge_drop" in advice("loss", {"edge_drop": 0.1, "feature_drop": 0.0})
    assert "edge_drop" not in advice("loss", nothing)


def test_a_baseline_is_not_told_to_be_itself():
    scores = {"accuracy": 0.5, "majority": 0.5, "nodes": (10, 10, 80)}
    assert "--method raw" in majority_sign(scores, {}).advice
    assert "--method raw" in majority_sign(scores, {}, "dgi").advice
    for told in (majority_sign(scores, {}, "raw"), majority_sign(scores, {}, "dgi")):
        assert "encoder" not in told.advice
    assert "--method" not in majority_sign(scores, {}, "raw").advice


def test_every_setting_that_advice_names_is_a_key_of_the_recipe_with_a_value_that_it_takes():
    for sign in ("loss", "collapse", "majority"):
        for key, value in re.findall(r"(\w+)=(\w+)", advice(sign)):
            load_recipe("default").replace(**{key: value})
        for key in re.findall(r"\b[a-z]+_[a-z]+\b", advice(sign)):
            assert key in Recipe.__dataclass_fields__
