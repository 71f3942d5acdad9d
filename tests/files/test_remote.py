"""Tables, stores and labels in an object store: a real server of S3 on this machine."""

import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from pyarrow import fs

import graphcl
from graphcl.cli.main import run
from graphcl.errors import GraphCLError, InvalidInputError, RunError
from graphcl.files import remote
from graphcl.files.remote import local, named
from graphcl.files.user import user_cache

EXAMPLES = Path(__file__).parents[2] / "examples"
SECRET = "hushhush"
TABLES = ["--label", "topic", "--text", "summary"]
QUICK = ["--set", "epochs=2", "--set", "dim=8"]


def answers(port):
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    with subprocess.Popen([sys.executable, "-c", start], stderr=subprocess.DEVNULL) as server:
        last = time.monotonic() + 120
        while not answers(port) and time.monotonic() < last:
            assert server.poll() is None
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
        server.terminate()


@pytest.fixture(scope="module")
def s3(address):
    """The server's files; those of a bucket are there from the start."""
    keys = {"access_key": "key", "secret_key": SECRET, "region": "us-east-1"}
    keys |= {"connect_timeout": 60, "request_timeout": 60}  # the server's first answer takes long
    s3 = fs.S3FileSystem(endpoint_override=address, allow_bucket_creation=True, **keys)
    s3.create_dir("bucket")
    return s3


@pytest.fixture(scope="module")
def made(s3, tmp_path_factory):
    """Tables and a store, here and in the bucket."""
    folder = tmp_path_factory.mktemp("made")
    for name in ("citations.csv", "articles.csv"):
        shutil.copy(EXAMPLES / name, folder)
    pyarrow.parquet.write_table(
        pyarrow.csv.read_csv(folder / "articles.csv"), folder / "articles.parquet"
    )
    shop = sqlite3.connect(folder / "shop.sqlite")
    shop.execute("CREATE TABLE cites AS SELECT 1 AS source, 2 AS target UNION SELECT 2, 3")
    shop.commit()
    shop.close()
    files = [str(folder / "citations.csv"), "--nodes", str(folder / "articles.csv"), *TABLES]
    assert run(["build", *files, "--out", str(folder / "graph.store")]) == 0
    fs.copy_files(str(folder), "bucket", destination_filesystem=s3, source_filesystem=here())
    return folder


def here():
    return fs.LocalFileSystem()


def put(s3, name, content):
    with s3.open_output_stream(name) as file:
        file.write(content)


@pytest.fixture
def uri(address, made, tmp_path, monkeypatch):
    """A function that names a file of the bucket, with credentials; a new cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(remote, "_fetched", {})
    return lambda name: f"s3://key:{SECRET}@{name}?endpoint_override={address}"


@pytest.fixture
def environment(uri, address, monkeypatch):
    """The address and the credentials are in the environment."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


def fetched():
    """Returns the files in the cache."""
    return sorted(one for one in (user_cache() / "fetched").rglob("*") if one.is_file())


def all_text(folder):
    return b"".join(one.read_bytes() for one in folder.rglob("*") if one.is_file())


# Through the commands


def test_tables_from_s3_to_train_and_what_the_run_says(environment, tmp_path, made, capfd):
    given = ["s3://bucket/citations.csv", "--nodes", "s3://bucket/articles.parquet", *TABLES]
    assert run(["train", *given, *QUICK, "--out", "there"]) == 0
    assert "s3://bucket/citations.csv: fetching 3,165 bytes\n" in capfd.readouterr().err
    files = [str(made / "citations.csv"), "--nodes", str(made / "articles.parquet"), *TABLES]
    assert run(["train", *files, *QUICK, "--out", "here"]) == 0
    there, own = graphcl.Run("there"), graphcl.Run("here")
    np.testing.assert_array_equal(there.embeddings, own.embeddings)
    config = (tmp_path / "there/config.toml").read_text()
    assert 'graph = "s3://bucket/citations.csv"\n' in config
    assert "s3://bucket/articles.parquet" in config
    assert str(user_cache()) not in config
    capfd.readouterr()
    # The run's graph is read again, by what the run says, also where the cache is empty.
    shutil.rmtree(user_cache() / "fetched")
    assert run(["embed", "there", "--out", "again.npy"]) == 0
    assert "fetching" in capfd.readouterr().err
    np.testing.assert_allclose(np.load("again.npy"), own.embeddings, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(there.graph.x, own.graph.x)


def test_credentials_in_a_uri_are_said_and_written_nowhere(uri, tmp_path, capfd):
    assert run(["train", uri("bucket/graph.store"), *QUICK, "--out", "there"]) == 0
    tables = [uri("bucket/citations.csv"), "--nodes", uri("bucket/articles.csv")]
    assert run(["check", *tables, "--json"]) == 2  # it asks for options, and shows the command
    assert run(["check", *tables, *TABLES, "-v"]) == 0
    assert run(["train", *tables, *TABLES, *QUICK, "--out", "tables", "-v"]) == 0
    assert run(["train", uri("bucket/none.csv").replace(SECRET, f"a/{SECRET}")]) == 2
    said = "".join(capfd.readouterr())
    assert "s3://bucket/citations.csv?endpoint_override=http://127.0.0.1" in said
    assert "try: graphcl check 's3://bucket/citations.csv" in said
    assert str(user_cache()) not in said
    assert SECRET not in said
    assert SECRET.encode() not in all_text(tmp_path)


def test_a_store_to_train_and_labels_to_predict(uri, s3, made, capfd):
    assert run(["train", uri("bucket/graph.store"), *QUICK, "--out", "there"]) == 0
    assert run(["train", str(made / "graph.store"), *QUICK, "--out", "here"]) == 0
    there, own = graphcl.Run("there"), graphcl.Run("here")
    np.testing.assert_array_equal(there.embeddings, own.embeddings)
    put(s3, "bucket/labels.csv", b"id,label\nTides of Biscay,wet\nSourdough in cold kitchens,dry\n")
    out = ["--out", "labels.csv"]
    graph = ["--graph", uri("bucket/graph.store")]
    asked = ["predict", "there", "--labels", uri("bucket/labels.csv"), *graph, *out, "--no-rivals"]
    assert run(asked) == 0, capfd.readouterr()
    predicted = pyarrow.csv.read_csv("labels.csv").column("label").to_pylist()
    assert len(predicted) == 34
    assert set(predicted) == {"wet", "dry"}


def test_a_database_a_query_and_tables_by_name(environment, capsys):
    assert local("s3://bucket/shop.sqlite:cites").endswith("/shop.sqlite:cites")
    graph = graphcl.read_tables("s3://bucket/shop.sqlite:cites", features="structural")
    assert (graph.num_nodes, graph.num_edges) == (3, 2)
    query = "SELECT \"from\" AS a, \"to\" AS b FROM 's3://bucket/citations.csv' WHERE a <> 's3://x'"
    assert graphcl.read_tables(query, features="structural").num_nodes == 36
    edges, nodes = {"cites": "s3://bucket/citations.csv"}, {"paper": "s3://bucket/articles.csv"}
    typed = graphcl.read_tables(edges, nodes, label="topic", text="summary")
    assert typed.type("paper").num_nodes == 36
    words = [f"--nodes=paper={nodes['paper']}", f"--edges=cites={edges['cites']}", *TABLES]
    assert run(["check", *words, "--json"]) == 0, capsys.readouterr()


def test_from_python(uri, made):
    given = uri("bucket/graph.store")
    graph = graphcl.open_graph(given)
    np.testing.assert_array_equal(graph.x, graphcl.open_graph(made / "graph.store").x)
    assert graphcl.open_graph(Path(given)).num_nodes == 36  # `Path` drops slashes
    model = graphcl.GraphCL(epochs=1, dim=8).fit(graph)
    model.save("run")
    assert graphcl.Run("run", graph=given).graph.num_nodes == 36
    with pytest.raises(RunError, match="nothing is written to an object store"):
        model.save("s3://bucket/run")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bucket/none.csv", "s3://bucket/none.csv?{at}: no such file"),
        ("nobody/edges.csv", "s3://nobody/edges.csv?{at}: no such bucket"),
        ("bucket/empty", "s3://bucket/empty?{at}: is no store, and no folder of .parquet files"),
    ],
)
def test_what_is_not_there(uri, s3, address, name, message, capsys):
    put(s3, "bucket/empty/notes.txt", b"none")
    for words in (["train"], ["predict", "run", "--labels"], ["build", "--out", "x", "--edges"]):
        assert run([*words, uri(name)]) == 2
        said = capsys.readouterr().err
        at = f"endpoint_override={address}"
        assert said.startswith(f"graphcl: {message.format(at=at)}")
        assert said.count("\n") == 1
    assert not fetched()


def test_an_unknown_scheme_and_a_file_of_this_machine(uri, made, capsys):
    assert run(["train", f"https://me:{SECRET}@host/edges.csv"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("graphcl: https://host/edges.csv: cannot be read: Unrecognized file")
    assert "are the scheme (s3, gs, hdfs, abfs, file), the address" in said
    assert SECRET not in said
    assert local(f"file://{made}/citations.csv") == str(made / "citations.csv")
    for other in ("cora", "mine.npz", "a=b.csv", None, 3, ["s3://bucket/x.csv"]):
        assert local(other) == other


def test_without_rights(uri, address, capsys):
    def allow(count):
        about = {"Content-Type": "text/plain"}
        asked = urllib.request.Request(f"{address}/moto-api/reset-auth", count, about)
        urllib.request.urlopen(asked, timeout=30).close()

    allow(b"0")
    try:
        assert run(["train", uri("bucket/citations.csv")]) == 2
    finally:
        allow(b"inf")
    said = capsys.readouterr().err
    assert re.match(r"graphcl: s3://bucket/citations.csv\S*: cannot be read: .*DENIED.*", said)
    assert said.endswith("and the credentials right, as in AWS_ACCESS_KEY_ID?\n")
    assert said.count("\n") == 1


def test_nothing_is_written_there(uri, s3, made, tmp_path, capsys):
    before = len(s3.get_file_info(fs.FileSelector("bucket", recursive=True)))
    store = str(made / "graph.store")
    for words in (
        ["build", str(made / "citations.csv"), "--features", "structural", "--out"],
        ["train", store, "--out"],
        ["tune", store, "--out"],
        ["predict"],
    ):
        assert run([*words, uri("bucket/new")]) == 2
        said = capsys.readouterr().err
        assert said.startswith("graphcl: s3://…: nothing is written to an object store; name a ")
        assert SECRET not in said
    assert len(s3.get_file_info(fs.FileSelector("bucket", recursive=True))) == before
    assert [one.name for one in tmp_path.iterdir() if one.name != "cache"] == []


def test_a_run_that_nobody_has_sealed_fetches_nothing(uri, capsys):
    assert run(["train", uri("bucket/graph.store"), *QUICK, "--out", "there"]) == 0
    shutil.rmtree(user_cache())  # and with it the key
    capsys.readouterr()
    assert run(["embed", "there", "--out", "z.npy"]) == 2
    assert "names the graph 's3://bucket/graph.store" in capsys.readouterr().err
    assert not fetched()


# The cache


def test_what_is_there_is_not_fetched_again_until_it_changes(environment, s3, capfd):
    put(s3, "bucket/growing.csv", b"a,b\n1,2\n")
    first = local("s3://bucket/growing.csv")
    assert Path(first).read_bytes() == b"a,b\n1,2\n"
    assert local("s3://bucket/growing.csv") == first
    assert capfd.readouterr().err.count("fetching") == 1
    put(s3, "bucket/growing.csv", b"a,b\n1,2\n2,3\n")
    second = local("s3://bucket/growing.csv")
    assert Path(second).read_bytes() == b"a,b\n1,2\n2,3\n"
    assert capfd.readouterr().err.count("fetching") == 1
    assert named(f"{second}: torn") == "s3://bucket/growing.csv: torn"
    assert not Path(first).exists()
    assert [str(one) for one in fetched() if one.name != ".lock"] == [second]


def test_of_the_same_size_it_is_known_by_its_time(environment, s3):
    put(s3, "bucket/same.csv", b"a,b\n1,2\n")
    local("s3://bucket/same.csv")
    time.sleep(1.1)  # S3 has times in seconds
    put(s3, "bucket/same.csv", b"a,b\n3,4\n")
    assert Path(local("s3://bucket/same.csv")).read_bytes() == b"a,b\n3,4\n"


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError("no space left")])
def test_an_interrupted_fetch_leaves_nothing(environment, failure, monkeypatch):
    copies = []

    def torn(source, into, size):
        if len(copies) == 3:
            into.write(source.read(10))
            raise failure
        copies.append(into.name)
        into.write(source.read())

    with monkeypatch.context() as patch:
        patch.setattr(remote.shutil, "copyfileobj", torn)
        with pytest.raises((KeyboardInterrupt, InvalidInputError)):
            local("s3://bucket/graph.store")
    assert len(copies) == 3
    assert [one.name for one in fetched()] == [".lock"]
    assert graphcl.open_graph("s3://bucket/graph.store").num_nodes == 36


def test_a_file_that_changes_while_it_is_fetched_is_refused(environment, monkeypatch):
    monkeypatch.setattr(remote.shutil, "copyfileobj", lambda source, into, _: into.write(b"half"))
    with pytest.raises(InvalidInputError, match=r"citations.csv changed meanwhile"):
        local("s3://bucket/citations.csv")
    assert [one.name for one in fetched()] == [".lock"]


def test_those_that_start_together_fetch_once(environment, capfd):
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(local, ["s3://bucket/graph.store"] * 4))
    assert len(found) == 1
    assert capfd.readouterr().err.count("fetching") == 1


def test_of_a_folder_its_tables_alone(environment, s3, made):
    for name in ("edges/part-0.parquet", "edges/day=2/part-1.PARQUET", "edges/_SUCCESS"):
        content = (made / "articles.parquet").read_bytes() if "part" in name else b""
        put(s3, f"bucket/{name}", content)
    folder = Path(local("s3://bucket/edges/"))
    found = {str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file()}
    assert found == {"part-0.parquet", "day=2/part-1.PARQUET"}


def test_a_name_that_leads_out_of_its_folder_is_refused(environment, monkeypatch):
    """S3 takes any text for a name."""

    class Hostile:
        @classmethod
        def from_uri(cls, _):
            return cls(), "bucket/x"

        def get_file_info(self, asked):
            if isinstance(asked, str):
                return fs.FileInfo(asked, fs.FileType.Directory)
            return [fs.FileInfo("bucket/x/../../../edges.parquet", fs.FileType.File, size=1)]

    monkeypatch.setattr(fs, "FileSystem", Hostile)
    with pytest.raises(GraphCLError, match="is no store, and no folder"):
        local("s3://bucket/x")
    assert not fetched()
