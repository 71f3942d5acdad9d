"""Tables of which a few rows changed, against plain copies."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphcl.errors import GraphError
from graphcl.files import patched
from graphcl.files.arrays import advise_random_reads, map_npy


@pytest.fixture
def any_size(monkeypatch):
    monkeypatch.setattr(patched, "SMALL_BYTES", 0)


@pytest.fixture
def table(tmp_path, any_size):
    np.save(tmp_path / "t.npy", np.arange(3000, dtype=np.float32).reshape(600, 5))
    return map_npy(tmp_path / "t.npy", GraphError)


def by_copy(table, rows, values):
    whole = np.concatenate(
        [table, np.zeros((max(0, max(rows) + 1 - len(table)), *table.shape[1:]))]
    )
    for row, value in zip(rows, values, strict=True):
        whole[row] = value
    return whole.astype(table.dtype)


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sets(st.integers(0, 59), max_size=6), st.integers(0, 5)),
        min_size=1,
        max_size=4,
    ),
    dtype=st.sampled_from(["<f4", "<f2", "|i1", "<i8"]),
    width=st.sampled_from([(), (1,), (7,), (1500,)]),
    pages=st.booleans(),
)
def test_every_change_of_a_change_is_that_of_a_copy(tmp_path_factory, steps, dtype, width, pages):
    folder = tmp_path_factory.mktemp("tables")
    random = np.random.default_rng(len(steps))
    expected = random.integers(-9, 9, (60, *width)).astype(dtype)
    np.save(folder / "t.npy", expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patched, "SMALL_BYTES", 0)
        patch.setattr(patched, "MOST", 0.3)
        patch.setattr(patched, "_PRIVATE_PAGES", pages)
        for number, (changed, new) in enumerate(steps):
            table = patched.map_table(folder, "t", GraphError)
            rows = np.array([*sorted(changed), *range(len(table), len(table) + new)], np.int64)
            values = random.integers(-9, 9, (len(rows), *width)).astype(dtype)
            if len(rows):
                expected = by_copy(expected, rows, values)
            found = patched.overlay(table, rows, values)
            np.testing.assert_array_equal(found, expected)
            folder = tmp_path_factory.mktemp(f"step{number}")
            patched.write_table(folder, "t", found, os.link)
            np.testing.assert_array_equal(patched.map_table(folder, "t", GraphError), expected)
            assert patched.has_table(folder, "t")


def test_the_base_is_shared_and_stays_as_it_was(table, tmp_path):
    before = np.array(table)
    rows = np.array([3, 599, 600, 601])
    found = patched.overlay(table, rows, np.full((4, 5), 7))
    (tmp_path / "new").mkdir()
    files = patched.write_table(tmp_path / "new", "t", found, os.link)
    assert [file.name for file in files] == ["t.base.npy", "t.rows.npy", "t.patch.npy"]
    assert files[0].samefile(tmp_path / "t.npy")
    assert not (tmp_path / "new/t.npy").exists()  # nobody takes the old rows for the new ones
    np.testing.assert_array_equal(np.load(tmp_path / "t.npy"), before)
    np.testing.assert_array_equal(table, before)
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1
    advise_random_reads(found[2:])
    # The memory lives as long as a view of it.
    view = found[599:]
    del found
    gc.collect()
    np.testing.assert_array_equal(view, np.full((3, 5), 7))


def test_without_private_pages_a_table_is_put_together_in_memory(table, tmp_path, monkeypatch):
    found = patched.overlay(table, np.array([3, 599, 600]), np.full((3, 5), 7))
    (tmp_path / "new").mkdir()
    files = patched.write_table(tmp_path / "new", "t", found, os.link)
    monkeypatch.setattr(patched, "_PRIVATE_PAGES", False)
    monkeypatch.setattr(patched._Region, "__init__", None)  # nothing is mapped privately
    there = patched.map_table(tmp_path / "new", "t", GraphError)
    np.testing.assert_array_equal(there, found)
    with pytest.raises(ValueError, match="read-only"):
        there[0] = 1
    assert patched.stored_files(there) == files
    assert patched.base_file(there) == files[0]
    again = patched.overlay(there, np.array([0]), np.ones((1, 5)))
    np.testing.assert_array_equal(again, by_copy(found, [0], np.ones((1, 5))))
    (tmp_path / "again").mkdir()
    assert len(patched.write_table(tmp_path / "again", "t", again, os.link)) == 1
    np.testing.assert_array_equal(patched.map_table(tmp_path / "again", "t", GraphError), again)


def test_a_large_patch_and_a_small_table_are_written_whole(table, tmp_path, monkeypatch):
    rows = np.arange(0, 600, 2)
    many = patched.overlay(table, rows, np.zeros((300, 5)))
    (tmp_path / "many").mkdir()
    assert len(patched.write_table(tmp_path / "many", "t", many, os.link)) == 1
    np.testing.assert_array_equal(np.load(tmp_path / "many/t.npy"), many)
    monkeypatch.undo()
    few = patched.overlay(table, rows[:1], np.zeros((1, 5)))
    (tmp_path / "few").mkdir()
    assert len(patched.write_table(tmp_path / "few", "t", few, os.link)) == 1
    np.testing.assert_array_equal(np.load(tmp_path / "few/t.npy"), few)


def test_a_file_that_another_has_replaced_is_not_its_base(table, tmp_path):
    np.save(tmp_path / "other.npy", np.zeros((600, 5), np.float32))
    (tmp_path / "other.npy").replace(tmp_path / "t.npy")
    found = patched.overlay(table, np.array([0]), np.ones((1, 5)))
    assert patched.base_file(found) is None
    np.testing.assert_array_equal(found[1:], np.arange(3000).reshape(600, 5)[1:])


def damaged(folder: Path, rows, values):
    np.save(folder / "t.rows.npy", rows)
    np.save(folder / "t.patch.npy", values)


@pytest.mark.parametrize(
    "rows",
    [
        np.array([-1, 3]),
        np.array([5, 4]),
        np.array([4, 4]),
        np.array([3, 601]),  # row 600 is left out
        np.array([3, 1 << 60]),
        np.array([3.0, 4.0]),
        np.array([[3, 4]]),
        np.array([3]),
    ],
)
def test_a_patch_that_does_not_fit_is_refused(table, tmp_path, rows):
    (tmp_path / "t.npy").rename(tmp_path / "t.base.npy")
    damaged(tmp_path, rows, np.zeros((2, 5), np.float32))
    with pytest.raises(GraphError, match=r"t\.rows\.npy: damaged"):
        patched.map_table(tmp_path, "t", GraphError)


def test_half_a_patch_is_refused(table, tmp_path):
    (tmp_path / "t.npy").rename(tmp_path / "t.base.npy")
    with pytest.raises(GraphError, match="is not the whole table"):
        patched.map_table(tmp_path, "t", GraphError)
    damaged(tmp_path, np.array([3]), np.zeros((1, 4), np.float32))
    with pytest.raises(GraphError, match="damaged"):
        patched.map_table(tmp_path, "t", GraphError)
    with pytest.raises(FileNotFoundError):
        patched.map_table(tmp_path, "none", GraphError)


def lists(rows):
    """Pointers and entries of lists of numbers."""
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return {"indptr": indptr, "indices": np.array([one for row in rows for one in row], np.int32)}


def save_lists(folder, tables):
    for name, table in tables.items():
        np.save(folder / f"{name}.npy", table)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(0, 99), max_size=4), min_size=1, max_size=30),
    steps=st.lists(
        st.tuples(
            st.dictionaries(
                st.integers(0, 29), st.lists(st.integers(0, 99), max_size=5), max_size=4
            ),
            st.lists(st.lists(st.integers(0, 99), max_size=3), max_size=3),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_lists_are_those_that_were_written(tmp_path_factory, rows, steps):
    folder = tmp_path_factory.mktemp("lists")
    save_lists(folder, lists(rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patched, "SMALL_BYTES", -1)
        patch.setattr(patched, "MOST", 2.0)
        for number, (changed, more) in enumerate(steps):
            rows = [changed.get(place, row) for place, row in enumerate(rows)] + more
            tables, before = lists(rows), folder
            folder = tmp_path_factory.mktemp(f"step{number}")
            files = patched.write_lists(folder, before, tables, os.link)
            for name, table in tables.items():
                found = patched.map_table(folder, name, GraphError)
                np.testing.assert_array_equal(found, table)
                assert found.dtype == table.dtype
                assert patched.stored_files(found) == files[name]
                base = patched.table_files(before, name)[0]
                assert files[name][0].samefile(base)  # the first folder's, at every step


@pytest.fixture
def many(tmp_path, any_size):
    """A thousand lists of three entries, with two numbers beside each."""
    random = np.random.default_rng(0)
    tables = lists(random.integers(0, 99, (1000, 3)).tolist())
    tables["edge_features"] = random.normal(size=(3000, 2)).astype(np.float32)
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    save_lists(tmp_path / "old", tables)
    return tables


def test_only_what_changed_in_lists_is_written(tmp_path, many):
    """One number beside one entry; the pages of a table that is read are its own."""
    changed = {**many, "edge_features": np.array(many["edge_features"])}
    changed["edge_features"][1501, 1] += 1
    files = patched.write_lists(tmp_path / "new", tmp_path / "old", changed, os.link)
    sizes = {name: [len(np.load(file)) for file in own[1:]] for name, own in files.items()}
    assert sizes == {"indptr": [0, 0], "indices": [1, 3], "edge_features": [1, 3]}
    found = patched.map_table(tmp_path / "new", "edge_features", GraphError)
    np.testing.assert_array_equal(found, changed["edge_features"])
    assert not found.flags.writeable
    advise_random_reads(found)
    # One that did not change shares all its files.
    (tmp_path / "third").mkdir()
    shared = patched.write_table(tmp_path / "third", "edge_features", found, os.link)
    pairs = zip(shared, files["edge_features"], strict=True)
    assert all(one.samefile(other) for one, other in pairs)


def test_lists_with_little_in_common_are_not_patched(tmp_path, many, monkeypatch):
    fewer = lists([[1, 2]] * 900)
    others = {**many, "indices": many["indices"] + 1}
    wider = {**many, "edge_features": np.zeros((3000, 3), np.float32)}
    for tables in (fewer, others, wider, {**many, "edge_weight": np.ones(3000, np.float32)}):
        assert patched.write_lists(tmp_path / "new", tmp_path / "old", tables, os.link) is None
    monkeypatch.setattr(patched, "LONG_BYTES", 1000)  # they stay mapped
    assert patched.write_lists(tmp_path / "new", tmp_path / "old", many, os.link) is None
    assert not any((tmp_path / "new").iterdir())


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("indices", np.array([[0, 1, 1], [0, 1, 2]])),  # they overlap
        ("indices", np.array([[-1, 1, 3]])),
        ("indices", np.array([[2999, 2, 3]])),  # more than there are
        ("indices", np.array([[5, 1, 2]])),  # the patch has three entries
        ("indices", np.array([[5, 1 << 62, 3]])),
        ("indices", np.array([[5, 1]])),
        ("indices", np.array([[5.0, 1, 3]])),
        ("indptr", np.array([[4, 1], [3, 1]])),
        ("indptr", np.array([[1001, 1]])),
        ("indptr", np.array([[-1, 1]])),
    ],
)
def test_cuts_that_do_not_fit_are_refused(tmp_path, many, name, rows):
    (tmp_path / f"old/{name}.npy").rename(tmp_path / f"old/{name}.base.npy")
    np.save(tmp_path / f"old/{name}.rows.npy", rows)
    np.save(tmp_path / f"old/{name}.patch.npy", np.zeros(3, many[name].dtype))
    with pytest.raises(GraphError, match=rf"{name}\.rows\.npy: damaged"):
        patched.map_table(tmp_path / "old", name, GraphError)
