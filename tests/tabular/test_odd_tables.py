import pytest

from tests.tabular.odd_tables import try_one


@pytest.mark.parametrize("first", range(0, 40, 8))
def test_odd_tables_are_read_or_refused_with_one_message(first, tmp_path):
    for seed in range(first, first + 8):
        folder = tmp_path / str(seed)
        folder.mkdir()
        assert try_one(seed, folder) in (0, 2)


def test_the_generator_makes_tables_of_both_kinds(tmp_path):
    codes = set()
    for seed in range(12):
        folder = tmp_path / str(seed)
        folder.mkdir()
        codes.add(try_one(seed, folder))
    assert codes == {0, 2}
