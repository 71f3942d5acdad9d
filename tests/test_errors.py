import os
import re
import subprocess
import sys

import pytest

from graphcl import errors
from graphcl.errors import command_running, option


def test_the_error_tree_is_drawn_as_it_is():
    drawn = set(re.findall(r"\b(\w+Error)\b(?: \(\w+\))?  ", errors.__doc__))
    real = {name for name in vars(errors) if name.endswith("Error")}
    assert drawn | {"GraphCLError"} == real


def test_durations():
    assert [errors.duration(s) for s in (0.4, 61, 7300)] == ["0 s", "1 min 01 s", "2 h 01 min"]


@pytest.mark.parametrize(
    ("given", "of", "python", "command"),
    [
        (("weight",), "", "weight", "--weight"),
        (("weight", "w"), "", "weight='w'", "--weight w"),
        (("weight", "my w"), "", "weight='my w'", "--weight 'my w'"),
        (("ignore", "größe"), "", "ignore=['größe']", "--ignore größe"),
        (("one_hot", "c"), "author", "one_hot={'author': ['c']}", "--one-hot author=c"),
        (("edges", "e.csv"), "a:r:b", "edges={'a:r:b': 'e.csv'}", "--edges a:r:b=e.csv"),
        (("overwrite", True), "", "overwrite=True", "--overwrite"),
        (("node_type", "paper"), "", "node_type='paper'", "--type paper"),
    ],
)
def test_an_option_is_named_as_its_caller_writes_it(given, of, python, command):
    assert option(*given, of=of) == python
    with command_running(), command_running():
        assert option(*given, of=of) == command
    assert option(*given, of=of) == python


def test_the_processes_of_a_command_name_its_options():
    words = [sys.executable, "-c", "from graphcl.errors import option; print(option('weight'))"]
    with command_running():
        inside = subprocess.check_output(words, text=True, env=os.environ.copy())
    assert inside.strip() == "--weight"
    assert subprocess.check_output(words, text=True).strip() == "weight"
