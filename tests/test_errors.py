import re

from graphcl import errors


def test_the_error_tree_is_drawn_as_it_is():
    drawn = set(re.findall(r"\b(\w+Error)\b(?: \(\w+\))?  ", errors.__doc__))
    real = {name for name in vars(errors) if name.endswith("Error")}
    assert drawn | {"GraphCLError"} == real


def test_durations():
    assert [errors.duration(s) for s in (0.4, 61, 7300)] == ["0 s", "1 min 01 s", "2 h 01 min"]
