import base64
import json
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.report.packing import (
    morton_order,
    pack,
    pack_texts,
    quantised,
    relative,
    script_json,
    unpack,
)


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32])
def test_arrays_come_back(kind):
    values = np.random.default_rng(0).integers(0, np.iinfo(kind).max, 1000, dtype=kind)
    packed = pack(values)
    assert np.array_equal(unpack(packed), values)
    assert unpack(packed).dtype == kind


@settings(deadline=None)
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_texts_come_back_and_hold_no_markup(texts):
    packed = pack_texts(texts)
    assert "<" not in packed
    assert json.loads(zlib.decompress(base64.b64decode(packed))) == texts


@settings(deadline=None)
@given(
    value=st.recursive(st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_json_in_a_script_cannot_end_it(value):
    text = script_json(value)
    assert not set("<>&") & set(text)
    assert json.loads(text) == value


def test_the_map_keeps_its_shape():
    places = np.array([[0.0, 0.0], [4.0, 0.0], [4.0, 1.0]])
    grid = quantised(places).astype(int)
    assert grid[:, 0].tolist() == [0, 65535, 65535]
    assert grid[2, 1] - grid[0, 1] == pytest.approx(65535 / 4, abs=1)
    assert (quantised(np.ones((3, 2))) == 32768).all()


def test_the_curve_keeps_neighbours_near():
    random = np.random.default_rng(0)
    grid = random.integers(0, 65536, (2000, 2)).astype(np.uint16)
    order = morton_order(grid)
    assert sorted(order) == list(range(2000))
    step = np.abs(np.diff(grid[order].astype(int), axis=0)).sum(axis=1)
    shuffled = np.abs(np.diff(grid.astype(int), axis=0)).sum(axis=1)
    assert step.mean() < shuffled.mean() / 8


def test_relative_is_undone_as_the_script_does():
    neighbours = np.array([[2, 1], [0, 2], [1, 0]])
    steps = relative(neighbours).astype(int)
    back = np.where(steps & 1, -(steps + 1) // 2, steps // 2) + np.arange(3)[:, None]
    assert np.array_equal(back, neighbours)
