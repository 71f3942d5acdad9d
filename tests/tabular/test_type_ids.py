from graphcl.tabular.type_ids import TypeIds


def test_added_ids_stay_numbers_or_become_texts():
    ids = TypeIds("a", None, 3)
    assert not ids.given
    ids.add(["7", "9"])
    assert (ids.keys.to_pylist(), ids.kind, ids.given) == ([0, 1, 2, 7, 9], "BIGINT", True)
    ids.add(["x"])
    assert (ids.keys.to_pylist()[-2:], ids.kind) == (["9", "x"], "VARCHAR")
    assert ids.table()["number"].to_pylist() == list(range(6))
