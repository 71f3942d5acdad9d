"""The documentation keeps its word: its commands and snippets run, its links lead somewhere.

Every fence of docs/ names its language. Blocks of a page run from top to bottom in one
folder, which holds the tables of examples/ and of examples/shop and nothing else. A comment on
the line above a block says what is done with it:

    <!-- file: NAME -->          the block is a file; it is written under that name
    <!-- test: epochs=2 -->      recipe keys that the test sets so that it is quick (a ``--set`` at
                                 the end of each training command, or the number in the snippet);
                                 ``map=pca`` draws a quick map, ``trials=2`` ends a search soon,
                                 ``exit=2`` expects that code
    <!-- not run: WHY -->        commands and options are only looked up
"""

import contextlib
import importlib.util
import io
import json
import re
import shlex
import shutil
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

import graphcl
from graphcl.cli.main import load_command, run
from graphcl.recipes.recipe import load_recipe, recipe_keys

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
LANGUAGES = {"bash", "console", "python", "csv", "toml", "text", "math", "yaml", "bibtex"}
_FENCE = re.compile(
    r"(?:^<!-- (file|test|not run): ([^\n]*?) -->\n)?^```(\w*)\n(.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A fenced block and what the comment above it says."""

    language: str
    text: str
    kind: str = ""
    said: str = ""

    @property
    def settings(self) -> dict[str, str]:
        """What ``test:`` sets."""
        return dict(pair.split("=") for pair in self.said.split()) if self.kind == "test" else {}


def blocks(path):
    found = _FENCE.findall(path.read_text())
    return [Block(language, text, kind, said) for kind, said, language, text in found]


def commands(block):
    """Pairs of a command and the output that is shown below it (None where none is shown)."""
    text = block.text.replace("\\\n", " ")
    if block.language == "bash":
        lines = (line for line in text.splitlines() if line.strip() and not line.startswith("#"))
        return [(line, None) for line in lines]
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
    assert parts[0] == "", "a console block begins with a command"
    return [tuple(part.partition("\n")[::2]) for part in parts[1:]]


def looked_up(line):
    """Checks that a line's command and options exist; lines of other programs pass."""
    words = shlex.split(line, comments=True)
    if "graphcl" not in words or words[0] == "pip":
        return
    name, *arguments = words[words.index("graphcl") + 1 :]
    if name.startswith("-"):
        return
    known = {option for one in load_command(name).params for option in one.opts}
    known |= {option for one in load_command(name).params for option in one.secondary_opts}
    given = {word.split("=")[0] for word in arguments if re.match(r"--?[a-z]", word)}
    assert given <= known, f"{line}: {given - known}"
    for word, value in pairwise(arguments):
        if word == "--set" and "--method" not in arguments:
            assert value.split("=")[0] in recipe_keys(), line


def run_command(line, shown, settings):
    program, *arguments = shlex.split(line, comments=True)
    assert program == "graphcl", f"{line}: say why it is not run"
    changed = dict(settings)
    code = int(changed.pop("exit", 0))
    layout, trials = changed.pop("map", None), changed.pop("trials", None)
    if arguments[0] in ("train", "evaluate", "tune") and "--method" not in arguments:
        for key, value in changed.items():  # a later --set wins
            arguments += ["--set", f"{key}={value}"]
    if arguments[0] == "report" and layout:
        arguments += ["--map", layout]
    if arguments[0] == "tune" and trials:
        arguments += ["--trials", trials]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        got = run(arguments)
    assert got == code, f"{line}\n{output.getvalue()}"
    if shown:
        pattern = "".join(
            r".*?" if part == "…" else re.escape(part) for part in re.split(r"(…)", shown.strip())
        )
        assert re.search(pattern, output.getvalue(), re.DOTALL), f"{line}\n{output.getvalue()}"


def run_python(block, names):
    source = block.text
    for key, value in block.settings.items():
        quick = re.sub(rf"\b{key}=[\w.\"]+", f"{key}={value}", source)
        assert quick != source, f"{key}: the snippet does not set it"
        source = quick
    exec(compile(source, "snippet", "exec"), names)  # noqa: S102


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """A folder with the example tables, and plain maps."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").mkdir()
    for table in (ROOT / "examples").glob("*.csv"):
        shutil.copy(table, tmp_path / "examples")
    for table in (ROOT / "examples/shop").glob("*.csv"):
        shutil.copy(table, tmp_path)
    monkeypatch.setattr("graphcl.reporting.projection.FEWEST", 10**9)  # points that UMAP needs


def place(path):
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", PAGES, ids=place)
def test_a_page_does_what_it_says(path, quick):
    names = {}
    for block in blocks(path):
        if block.kind == "file":
            Path(block.said).write_text(block.text, encoding="utf-8")
        elif block.language in ("bash", "console"):
            for line, shown in commands(block):
                looked_up(line)
                if block.kind != "not run":
                    run_command(line, shown, block.settings)
        elif block.language == "python" and block.kind == "not run":
            compile(block.text, path.name, "exec")
        elif block.language == "python":
            run_python(block, names)


@pytest.mark.parametrize("path", [*PAGES, ROOT / "README.md"], ids=place)
def test_fences_and_comments_are_understood(path):
    text = path.read_text()
    assert text.count("\n```") == 2 * len(blocks(path)), "a fence is not closed, or indented"
    if path.parent != ROOT:
        assert {block.language for block in blocks(path)} <= LANGUAGES
    for block in blocks(path):
        assert set(block.settings) <= {*recipe_keys(), "map", "trials", "exit"}
    spoken = re.findall(r"^<!-- (?:file|test|not run):", text, flags=re.MULTILINE)
    assert len(spoken) == sum(block.kind != "" for block in blocks(path)), (
        "a comment lost its block"
    )


def anchors(path):
    """The anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", [*PAGES, ROOT / "README.md"], ids=place)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\((?!http)([^)\s]+)\)", path.read_text()):
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), target


def test_links_into_the_code_name_what_is_there():
    """In how-it-works.md, [`name`](../../src/….py) means that the file defines `name`."""
    page = (ROOT / "docs/research/how-it-works.md").read_text()
    found = re.findall(r"\[`([\w.]+)`\]\(\.\./\.\./(src/[\w/]+\.py)\)", page)
    assert len(found) > 20
    for name, file in found:
        source = (ROOT / file).read_text()
        for part in name.split("."):
            assert re.search(rf"^\s*(def|class) {part}\b|^{part} = ", source, flags=re.MULTILINE), (
                f"{file}: {name}"
            )


def test_the_page_of_parameters_has_every_key_with_its_default():
    page = (ROOT / "docs/use/parameters.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", page, flags=re.MULTILINE))
    default = load_recipe("default")
    assert rows == {key: _as_toml(getattr(default, key)) for key in recipe_keys()}


def _as_toml(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"scripts/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_api_page_names_every_public_thing():
    page = script("build_api_page").page()
    headings = set(re.findall(r"^## `graphcl\.(\w+)`$", page, flags=re.MULTILINE))
    assert headings == set(graphcl.__all__)
    for thing in (graphcl.GraphCL, graphcl.Run, graphcl.Graph):
        ours = [one for one in thing.__mro__ if one.__module__.startswith("graphcl.")]
        for member in {key for one in ours for key, value in vars(one).items() if callable(value)}:
            if not member.startswith("_") and getattr(thing, member).__doc__:
                assert f"### `{thing.__name__}.{member}`" in page


def test_every_page_is_in_the_index_and_in_the_site():
    index, site = (ROOT / "docs/README.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    for path in PAGES:
        page = path.relative_to(ROOT / "docs").as_posix()
        assert page in site
        assert page == "README.md" or f"]({page})" in index, page


# What scripts of benchmarks/ write: tables between marks, and whole pages.
MADE = re.compile(
    r"<!-- (?:rows|table): [\w-]+ -->.*?<!-- end(?: of rows)? -->"
    r"|<!-- (?:criteria|today|estimate) -->.*?<!-- end -->"
    r"|<!-- (model|hosts|training hosts|faults) -->.*?<!-- end \1 -->"
    r"|<!-- days: begin -->.*?<!-- days: end -->",
    re.DOTALL,
)
WHOLLY = ("gallery.md", "reproduction.md", "precision.md")


def test_what_is_written_by_hand_has_at_most_25000_words():
    by_hand = [path for path in PAGES if path.name not in WHOLLY]
    counts = {
        path: len(MADE.sub("", path.read_text()).split()) for path in [*by_hand, ROOT / "README.md"]
    }
    assert sum(counts.values()) <= 25_000
    assert counts[ROOT / "README.md"] <= 700


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda p: p.stem)
def test_notebooks_run(path, quick):
    for table in Path("examples").glob("*.csv"):
        shutil.copy(table, ".")
    found = json.loads(path.read_text())
    for cell in found["cells"]:
        if cell["cell_type"] == "code":
            cell["source"] = [re.sub(r"\bepochs=\d+", "epochs=2", line) for line in cell["source"]]
    assert any(script("run_notebooks").executed(found))


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_examples_run(path, quick, capsys):
    quick_source = re.sub(r"\bepochs=\d+", "epochs=2", path.read_text())
    exec(compile(quick_source, path.name, "exec"), {"__name__": "__main__"})  # noqa: S102
    assert capsys.readouterr().out


@pytest.mark.parametrize("path", sorted((ROOT / "examples/clusters").iterdir()), ids=place)
def test_a_page_shows_the_file_that_it_links_to(path):
    pages = [page for page in PAGES if f"](../../{place(path)})" in page.read_text()]
    assert path.read_text() in [block.text for page in pages for block in blocks(page)]
