"""What messages propose exists, and works when it is pasted."""

import ast
import re
import shlex
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import graphcl
from graphcl.cli.main import COMMANDS as NAMES
from graphcl.cli.main import load_command, run
from graphcl.errors import option_of
from graphcl.evaluation.failure import advice
from graphcl.recipes import Recipe
from graphcl.tabular.build import load_tables
from graphcl.tabular.options import TableOptions
from tests.proposals import CHECK, PROSE, REASONS, ROWS, SMALL, TYPED, table

SOURCE = Path(graphcl.__file__).parent
COMMANDS = {name: load_command(name) for name in NAMES}
# Strings that look like proposals, or name options of something else, and why they are none.
OTHERS = {
    "--standalone": "torchrun's",
    "--nproc-per-node": "torchrun's",
    "--max-restarts": "torchrun's",
    "--logdir": "tensorboard's",
    "--recursive": "of aws s3 cp",
    "--no": "the beginning of --no-scale and its like",
    "--ink": "a colour",
    "--soft": "a colour",
    "--card": "a colour",
    "--line": "a colour",
    "graphcl run": "what a seal is for",
}


NAMED = (
    r"(?<![\w-])--[a-z]|graphcl [a-z]|\bset [a-z_]+=|\bpass [a-z]+=|pip install|"
    r"^(?!.*<).*\b(?:mode|encoder|device|batch_nodes|overwrite|features)=[\w…']"
)


def options_of(command):
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts)}


def as_typed(node):
    """Returns `option(...)` of src as the command line has it; None if it is another thing."""
    called = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "option"
    if not called or not isinstance(node.args[0], ast.Constant):
        return None
    values = [one.value for one in node.keywords if one.arg == "of"] + node.args[1:]
    plain = all(isinstance(one, ast.Constant) for one in values)
    if plain and any(one.value is False for one in values):
        return option_of(f"no_{node.args[0].value}")
    given = "=".join(one.value for one in values if one.value is not True) if plain else "…"
    return f"{option_of(node.args[0].value)} {given}".strip()


def texts(tree):
    """Yields the strings of a module that are no docstrings; a value in an f-string is `…`."""
    nodes = list(ast.walk(tree))
    documents = {
        node.body[0].value
        for node in nodes
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    parts = [part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values]
    inside = {*parts, *(getattr(part, "value", None) for part in parts)}
    known = documents | inside
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            shown = (
                one.value if isinstance(one, ast.Constant) else as_typed(one.value) or "…"
                for one in node.values
            )
            yield "".join(map(str, shown))
        elif node not in known and as_typed(node):
            yield as_typed(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in known:
            yield node.value


@cache
def proposals():
    """Returns every string of src that names a command, an option or a setting; and its file."""
    return [
        (path, text)
        for path in sorted(SOURCE.rglob("*.py"))
        for text in texts(ast.parse(path.read_text(encoding="utf-8")))
        if re.search(NAMED, text)
    ]


def test_what_messages_name_exists():
    assert len(proposals()) > 100
    for path, text in proposals():
        check_names(path, text)


def check_names(path, text):
    named = re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text)
    known = set().union(*map(options_of, COMMANDS.values()))
    # A file of a command speaks of that command's options, unless it names another command.
    own = COMMANDS.get(path.stem) if path.parent.name == "cli" else None
    if own is not None and "graphcl " not in text and len(named) == 1 and ";" not in text:
        known = options_of(own) | {"--json", "--help", "--version"}
    for option in named:
        assert option in known | {"--help", "--version"} or option in OTHERS, text
    for command in re.findall(r"\bgraphcl ([a-z]+)\b(?= [-…A-Z./]|$)", text):
        assert command in COMMANDS or text in OTHERS, text
    for key in re.findall(r"\bset ([a-z_]+)=", text):
        assert key in Recipe.__dataclass_fields__, text


@pytest.mark.parametrize("sign", ["loss", "collapse", "majority"])
def test_advice_works_when_it_is_pasted(sign, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    edges, y = rng.integers(0, 40, (2, 120)), rng.integers(0, 2, 40)
    np.savez("mine.npz", edge_index=edges, x=rng.normal(size=(40, 4)), y=y)
    small = ["--set", "epochs=1", "--set", "dim=8", "--device", "cpu"]
    told = advice(sign)
    settings = re.findall(r"\b[a-z_]+=[a-z]+", told)
    proposed = [["--set", one, *small] for one in settings]
    proposed += [["--method", one] for one in re.findall(r"--method (\w+)", told)]
    assert proposed
    for number, one in enumerate(proposed):
        code = run(["train", "mine.npz", "--out", f"run{number}", *one])
        assert code == 0, (one, capsys.readouterr().err)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A folder with tables, vectors, and runs of a plain graph and of a typed one."""
    folder = tmp_path_factory.mktemp("base")
    ring = [f"n{one},n{(one + step) % 12}" for one in range(12) for step in (1, 3)]
    files = {
        "edges.csv": ["source,target", "a,b", "b,c", "c,d", "d,a", "a,c"],
        "ring.csv": ["source,target", *ring],
        "people.csv": ["id,v,topic", *(f"n{one},{one % 5},{'uw'[one % 2]}" for one in range(12))],
        "authors.csv": ["id,v,year", *(f"a{one},{one},{one % 2}" for one in range(6))],
        "papers.csv": ["id,v,year", *(f"p{one},{one},{one % 2}" for one in range(6))],
        "writes.csv": ["author,paper", *(f"a{one},p{one * 2 % 6}" for one in range(6))],
        "cites.csv": ["paper,cited", *(f"p{one},p{(one + 1) % 6}" for one in range(6))],
        "aa.csv": ["source,target", *(f"a{one},a{(one + 1) % 6}" for one in range(6))],
    }
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines), encoding="utf-8")
    np.save(folder / "v.npy", np.arange(8.0).reshape(4, 2))
    typed = (
        TYPED.removeprefix("check ")
        + " --edges writes=writes.csv --edges paper:cites:paper=cites.csv"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, graph in {
            "run": "ring.csv --nodes people.csv --label topic",
            "bare": "ring.csv --nodes people.csv --ignore topic",
            "typed": typed,
        }.items():
            assert run(shlex.split(f"train {graph} --out {name} {SMALL}")) == 0
    return folder


def one_line(text):
    return " ".join(text.split())


def is_in(template, message):
    """Returns whether a string of src, whose values are `…`, is part of a message."""
    return re.search(".*?".join(map(re.escape, one_line(template).split("…"))), message)


def proposed(message, words):
    """Yields the commands that a message proposes: whole ones, and `words` with its options."""
    whole = re.search(r"(?:\btry: |^)graphcl (.+)", message)
    if whole:
        yield tuple(shlex.split(whole[1]))
        message = message[: whole.start()]
    flags = {
        name
        for one in COMMANDS[words[0]].params
        if getattr(one, "is_flag", False)
        for name in (*one.opts, *one.secondary_opts)
    }
    for found in re.finditer(r"(?<![\w-])(--[a-z][a-z-]*[a-z])(?![\w:-])", message):
        value = re.match(r" ((?:\"[^\"]*\"|'[^']*'|[^\s;,\"')])+|,)", message[found.end() :])
        if found[1] in flags:
            yield (*words, found[1])
        elif value:
            yield (*words, found[1], *shlex.split(value[1]))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.says)
def test_a_proposal_works_when_it_is_pasted(row, base, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(base, tmp_path, dirs_exist_ok=True)
    for name, text in row.files.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text or "", encoding="utf-8")
        if text is None:
            Path(name).unlink()
    for one in row.before.split("; ") if row.before else ():
        assert run(shlex.split(one)) == 0, capsys.readouterr().err
    capsys.readouterr()
    if row.unsealed:
        config = Path("run/config.toml")
        config.write_text(config.read_text().replace('seal = "', 'seal = "!'))
    run(shlex.split(row.command))
    message = one_line("".join(reversed(capsys.readouterr())))
    if row.reads:
        message = one_line(Path(row.reads).read_text(encoding="utf-8"))
    assert is_in(template(row), message), message
    assert row.drop in row.command
    words = shlex.split(row.command.replace(row.drop, "") if row.drop else row.command)
    advice = re.search(row.take, message)[0]
    for short, long in row.fill.items():
        assert short in advice, advice
        advice = advice.replace(short, long)
    ways = dict.fromkeys(proposed(advice, words)) if row.take else [words]
    assert ways, message
    for way in ways:
        more = list(way[: len(words)]) == words
        added = shlex.join(way[len(words) :]) if more else ""
        assert not added or added not in row.command, f"already set: {added}"
        code = run(list(way))
        assert code == 0, (way, capsys.readouterr().err)


def template(row):
    """Returns the string of src that a row is about: the shortest that contains its piece.

    A message that is put together has no such string: the piece, which a user reads, is its own.
    """
    piece = getattr(row, "says", row)
    return min((text for _, text in proposals() if piece in text), key=len, default=piece)


def drawn():
    networkx = pytest.importorskip("networkx")
    graph = networkx.path_graph(4)
    networkx.set_node_attributes(graph, 1.5, "a")
    return graph


def predicted(**more):
    return graphcl.predict(np.load("run/embeddings.npy"), nodes="all", **more)


# Messages in Python's words: a piece of the string, and a call to which its keywords are added.
CALLS = {
    "a model needs the graph": lambda **more: graphcl.predict(
        graphcl.GraphCL.load("run"), nodes="all", **more
    ),
    "missing links need": lambda **more: graphcl.links(np.load("run/embeddings.npy"), **more),
    "there are no labels; pass": predicted,
    "name attributes": lambda **more: graphcl.Graph.from_networkx(drawn(), **more),
    "from_networkx: the graph has no": lambda **more: graphcl.Graph.from_networkx(drawn(), **more),
    "a typed graph needs edges": lambda **more: graphcl.read_tables(
        **{"nodes": {"author": "authors.csv"}, **more}
    ),
    "a typed graph needs nodes": lambda **more: graphcl.read_tables(
        **{"edges": {"knows": "aa.csv"}, "nodes": {}, **more}
    ),
}


@pytest.mark.parametrize("says", CALLS)
def test_keywords_that_a_message_proposes_work(says, base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(base, tmp_path, dirs_exist_ok=True)
    values = {
        "graph": graphcl.read_tables("ring.csv", "people.csv", label="topic"),
        "labels": {one: "uw"[one % 2] for one in range(12)},
        "edges": {"knows": "aa.csv"},
        "nodes": {"author": "authors.csv"},
    }
    with pytest.raises(graphcl.GraphCLError) as caught:
        CALLS[says]()
    message = one_line(str(caught.value))
    assert says in message
    ways = re.findall(r"\b([a-z]+)=(\[[^]]*\]|'[^']*')?", message)
    assert ways
    for key, literal in ways:
        assert CALLS[says](**{key: ast.literal_eval(literal) if literal else values[key]})


LITERAL = r"(?:'(?:\\.|[^'\\])*'|\[.*?\]|\{.*?\})"
# Keywords that messages propose in Python: those that are given to `read_tables`, and files.
KEYWORDS = {
    "weight": (
        {"features": "structural", "nodes": None},
        {"e.csv": "source,target,weight\na,b,1\nb,c,2"},
    ),
    "ignore": ({}, table("c", *"stuv")),
    "one_hot": ({"strict": True}, table("c", "u", "w")),
    "text": ({}, table("c", *PROSE)),
    "date": ({"strict": True}, table("c", "2020-02-21", "2021-04-03")),
    "date_format": ({}, table("c", "01/02/2020", "03/04/2021")),
    "decimal": ({}, table("c", '"1,234"', '"2,345"')),
    "missing": ({"missing": "refuse"}, table("c", "", "2")),
    "label": ({}, table("label", "1", "2")),
    "label_separator": ({"label": "t"}, table("t", "u;w", "w;u", "u", "w")),
    "unknown_edges": ({}, {"n.csv": "id,v\na,1\nb,1\nc,1"}),
    "duplicates": ({}, {"n.csv": "id,v\na,1\na,2\nb,1\nc,1\nd,2"}),
    "id_column": (
        {},
        {"n.csv": "id,name\n1,7\n1,1\n2,2\n3,8", "e.csv": "who,whom\n1,2\n2,1"},
    ),
    "features": ({"nodes": None}, {}),
    "nodes": ({}, {"n.csv": "id,v\n1.0,1\n2.0,1", "edges.csv": "source,target\n1,2"}),
    "edges": (
        {"nodes": {"author": "x.csv", "paper": "x.csv"}, "edges": {"r": "e.csv"}},
        {"x.csv": "id,v\n1,1\n2,2", "e.csv": "p,q\n1,2\n2,1"},
    ),
}


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_python_is_told_keywords_that_work(keyword, base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(base, tmp_path, dirs_exist_ok=True)
    given, files = KEYWORDS[keyword]
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8")
    given = {"edges": "e.csv" if "e.csv" in files else "edges.csv", "nodes": "n.csv", **given}
    edges = None if isinstance(given["edges"], dict) else given.pop("edges")
    try:
        _, report = load_tables(edges, TableOptions(**given))
        told = "\n".join((*report.first, *report.notes))
    except graphcl.GraphCLError as error:
        told = str(error)
    assert not re.search(r"(^|\W)--[a-z]", told), told
    ways = re.findall(rf"\b{keyword}={LITERAL}(?:, \w+={LITERAL})*", told)
    assert ways, told
    for way in ways:
        pairs = re.findall(rf"(\w+)=({LITERAL})", way)
        pasted = given | {name: ast.literal_eval(value) for name, value in pairs}
        assert pasted != given
        assert graphcl.read_tables(pasted.pop("edges", edges), **pasted).num_nodes


def test_an_interrupted_training_goes_on(base, tmp_path, monkeypatch, capsys):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    shutil.copytree(base, tmp_path, dirs_exist_ok=True)
    words = shlex.split(f"train ring.csv --nodes people.csv --label topic --out new {SMALL}")
    with monkeypatch.context() as patched:
        patched.setattr("graphcl.cli.train.probe", interrupt)
        assert run(words) == 130
    message = one_line(capsys.readouterr().err)
    assert is_in("saved in …; go on with the same command and --resume", message), message
    shutil.copytree("new.partial", "kept")
    assert run(words) == 2
    message = one_line(capsys.readouterr().err)
    ways = list(proposed(message[message.index("holds an unfinished") :], words))
    assert [way[-1] for way in ways] == ["--resume", "--overwrite"]
    for way in ways:
        shutil.rmtree("new", ignore_errors=True)
        shutil.copytree("kept", "new.partial", dirs_exist_ok=True)
        assert run(list(way)) == 0, capsys.readouterr().err


def test_vectors_are_saved_as_it_is_said(base, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(base, tmp_path, dirs_exist_ok=True)
    Path("n.csv").write_text(table("c", "1")["n.csv"], encoding="utf-8")
    assert run(shlex.split(CHECK + " --vectors v.csv")) == 2
    code = re.search(r"numpy\.save\(.*\)", capsys.readouterr().err)[0]
    exec(code, {"numpy": np, "x": np.ones((4, 2))})  # noqa: S102 (as a reader would)
    saved = re.search(r"'(.*)'", code)[1]
    assert run(shlex.split(f"{CHECK} --vectors {saved}")) == 0, capsys.readouterr().err


def fitting(start, texts):
    """Returns the strings that an entry of REASONS is about: itself, or those that begin so."""
    return {start} & texts or {one for one in texts if one.startswith(start)}


def test_every_proposal_is_run_or_listed():
    texts = {text for _, text in proposals() if " " in text}
    rest = texts - {template(row) for row in ROWS} - {template(one) for one in CALLS}
    listed = set()
    for reason, starts in REASONS.items():
        if reason.startswith("run by "):
            assert reason.removeprefix("run by ") in globals()
        for start in starts:
            # Of one string alone: a new one that begins so is not excused with it.
            assert len(fitting(start, rest)) == 1, (start, fitting(start, rest))
            listed |= fitting(start, rest)
    assert rest == listed, "give it a row in ROWS, or a reason in REASONS"


@pytest.mark.parametrize(
    ("command", "files"),
    [
        (
            "check e.csv --features structural --weight w --decimal ,",
            {"e.csv": 'source,target,w\na,b,"-1,5"\nb,c,"2,5"'},
        ),
        (f"{CHECK} --date c --date-format %d/%m/%Y", table("c", "21/02/2020", "x")),
    ],
)
def test_advice_names_nothing_that_is_set(command, files, base, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(base, tmp_path, dirs_exist_ok=True)
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8")
    assert run(shlex.split(command)) == 2
    told = capsys.readouterr().err.partition("try: graphcl")[0]
    assert shlex.split(command)[-2] not in told, told
