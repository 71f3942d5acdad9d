"""A preparation is kept as data and read with suspicion."""

import json

import numpy as np
import pytest

from graphcl.errors import RunError
from graphcl.tabular.preparation import (
    ARRAYS,
    FILE,
    Column,
    Preparation,
    read_preparation,
    write_preparation,
)

WHOLE = Preparation(
    (
        Column("age", fill=1 / 3, features=("age",), low=-1.5, high=2.0**60, missing=3),
        Column("Straße €", "category", ("s=a", "s=b"), categories=("a", "b")),
        Column("day", "date", tuple("1234567"), origin=1e9, clock=True),
        Column("bio", "text", ("bio~0", "bio~1")),
    ),
    missing="zero",
    sparse=True,
    arrays={"bio/idf": np.ones(4, np.float32), "bio/axes": np.eye(2, 4, dtype=np.float32)},
)


def test_what_is_written_is_read(tmp_path):
    assert read_preparation(tmp_path) is None
    write_preparation(tmp_path, WHOLE)
    found = read_preparation(tmp_path)
    assert found.columns == WHOLE.columns
    assert (found.missing, found.sparse) == ("zero", True)
    assert found.features == WHOLE.features
    for name, array in WHOLE.arrays.items():
        assert np.array_equal(found.arrays[name], array)


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about.update(format=99),
        lambda about: about.update(missing="guess"),
        lambda about: about.update(columns=3),
        lambda about: about["columns"][0].update(fill="much"),
        lambda about: about["columns"][0].update(fill=1e400),
        lambda about: about["columns"][0].update(kind="code"),
        lambda about: about["columns"][0].update(unknown=1),
        lambda about: about["columns"][1].update(categories=["a"]),
        lambda about: about["columns"][2].update(features=["1"]),
        lambda about: about["columns"][3].update(features=["1", "2", "3"]),
        lambda about: about["columns"][3].update(name="other"),
    ],
)
def test_a_forged_one_is_refused(tmp_path, change):
    write_preparation(tmp_path, WHOLE)
    about = json.loads((tmp_path / FILE).read_text())
    change(about)
    (tmp_path / FILE).write_text(json.dumps(about).replace("Infinity", "1e999"))
    with pytest.raises(RunError):
        read_preparation(tmp_path)


def test_damaged_or_missing_arrays_are_refused(tmp_path):
    write_preparation(tmp_path, WHOLE)
    whole = (tmp_path / ARRAYS).read_bytes()
    (tmp_path / ARRAYS).write_bytes(whole[:-3])
    with pytest.raises(RunError):
        read_preparation(tmp_path)
    (tmp_path / ARRAYS).unlink()
    with pytest.raises(RunError, match="missing; the run prepares text by it"):
        read_preparation(tmp_path)
    (tmp_path / FILE).write_text("{")
    with pytest.raises(RunError, match="damaged"):
        read_preparation(tmp_path)
