"""What is printed cannot steer a terminal, whatever ids, columns, classes and files are called."""

import io
import json
import unicodedata

import numpy as np
import pyarrow
import pytest
from pyarrow.parquet import write_table

from graphcl.cli.main import run
from graphcl.cli.progress import count_progress
from graphcl.files.records import Answer
from graphcl.terminal import EscapedStream, escaped, escaped_cell

HOSTILE = "\x1b[2J\r\x07\u202e[red]x[/]"
SHOWN = r"\u001b[2J\u000d\u0007\u202e[red]x[/]"


def unsafe(text):
    """Returns the characters of a text that steer a terminal or reorder what it shows."""
    kinds = {one: unicodedata.category(one) for one in set(text) - {"\n", "\t"}}
    return {one for one in kinds if kinds[one] in ("Cc", "Zl", "Zp") or one in "\u202e\u2066"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain Zoë 東京 👩‍👩‍👧 [bold]x[/]", "plain Zoë 東京 👩‍👩‍👧 [bold]x[/]"),
        (HOSTILE, SHOWN),
        ("\x00\x7f\x9b\u2028\u2066\ud800", r"\u0000\u007f\u009b\u2028\u2066\ud800"),
    ],
)
def test_unsafe_characters_are_shown_by_their_codes(text, shown):
    assert escaped(text) == escaped_cell(text) == shown
    assert not unsafe(escaped(text))


def test_a_cell_is_one_line_and_a_text_keeps_its_lines():
    assert escaped("a\n\tb") == "a\n\tb"
    assert escaped_cell("a\n\tb") == r"a\u000a\u0009b"


def test_json_stays_json():
    out = io.StringIO()
    EscapedStream(out).write(json.dumps({"name": "\x7f\x1b"}))
    assert json.loads(out.getvalue()) == {"name": "\x7f\x1b"}


def test_a_result_in_python_is_shown_escaped():
    class Named(Answer):
        def title(self):
            return "names"

        def columns(self):
            return {"id": np.array([f"a\n{HOSTILE}"])}

    assert f"a\\u000a{SHOWN}"[:30] in repr(Named())


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_progress_bar_steers_the_terminal_and_shows_names_as_they_are(monkeypatch):
    terminal = _Terminal()
    monkeypatch.setattr("sys.stderr", EscapedStream(terminal))
    monkeypatch.setattr("graphcl.cli.progress.BAR_EVERY_SECONDS", 1e-9)
    with count_progress(f"{{0}} {HOSTILE}", "step") as count:
        count(1, 3)
        count(2, 3)
    text = terminal.getvalue()
    assert "\x1b[2K" in text
    assert "\x1b[2J" not in text
    assert f"{{0}} {SHOWN}" in text


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A folder with tables whose ids, columns, classes and file names are hostile, and a run."""
    folder = tmp_path_factory.mktemp("hostile")
    random = np.random.default_rng(0)
    ids = [f"{HOSTILE}\n{number}" for number in range(60)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        number = np.arange(60)
        side = [f"{HOSTILE}\n{'north' if one else 'south'}" for one in number % 2]
        labels = [None if one >= 50 else f"{HOSTILE}{one % 2}" for one in number.tolist()]
        ages = number % 2 * 30 + random.integers(9, size=60)
        columns = {"id": ids, f"age {HOSTILE}": ages, f"town {HOSTILE}": side, "label": labels}
        write_table(pyarrow.table(columns), "nodes\x1b.parquet")
        ends = [ids[(one + step) % 60] for step in (2, 6) for one in number.tolist()]
        write_table(pyarrow.table({"source": ids * 2, "target": ends}), "edges.parquet")
        yield folder


def test_no_command_prints_what_steers_a_terminal(hostile, monkeypatch, capfd):
    monkeypatch.chdir(hostile)
    tables = ["edges.parquet", "--nodes", "nodes\x1b.parquet", "--label", "label"]
    name = f"{HOSTILE}\n7"
    commands = [
        (0, ["check", *tables, "-v"]),
        (0, ["train", *tables, "--set=epochs=2", "--set=dim=8", "--out", "run", "-v"]),
        (0, ["predict", "run", "--all"]),
        (0, ["cluster", "run", "--count", "2"]),
        (0, ["neighbors", "run", name]),
        (0, ["neighbors", "run", name, "--out", "near\x1b[2J\r.csv"]),
        (0, ["links", "run", "-k", "3"]),
        (0, ["cluster", "run", "--json"]),
        (2, ["neighbors", "run", f"no {HOSTILE}"]),
        (2, ["check", f"{HOSTILE}.csv"]),
        (2, ["cluster", "run", "--graph", f"{HOSTILE}"]),
        (2, ["train", *tables, f"--set={HOSTILE}=1"]),
        (2, ["cluster", "run", f"--{HOSTILE}"]),
        (2, [HOSTILE]),
    ]
    said = ""
    for code, arguments in commands:
        assert run(arguments) == code, arguments
        out, err = capfd.readouterr()
        assert not unsafe(out + err), arguments
        if code == 0 and "--json" not in arguments and arguments[1] == "run":
            assert "\\u001b" in out + err, arguments
        said += out + err
    assert SHOWN in said
