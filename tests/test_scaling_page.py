"""The commands of docs/operate/scaling.md for many machines, on one: two processes for many.

They are taken from the page as they are. Numbers of machines and processes, addresses and paths are
changed. Programs that start others are stand-ins: Slurm's know one host, and torchrun's says how it
was called. What it would start is run in the processes that tests share. The first line for
torchrun is run once more by torchrun itself.
"""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from torch.distributed.run import get_args_parser

from graphcl.estimator.model import GraphCL
from graphcl.partitioned.embeddings import open_shards
from graphcl.tabular.build import build_store
from tests.cli.conftest import arrays_of
from tests.conftest import random_graph
from tests.groups import command, free_port
from tests.interpreter import warm
from tests.test_docs import blocks

ROOT = Path(__file__).parents[1]
PAGE, CLUSTERS = ROOT / "docs/operate/scaling.md", ROOT / "examples/clusters"
QUICK = "--set epochs=1 --set dim=8"
SLURM = {"SLURM_NNODES": "1", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "node[1-4]"}
STAND_INS = {
    "scontrol": '[ "$*" = "show hostnames node[1-4]" ] && echo localhost',
    "srun": 'exec "$@"',
    "torchrun": 'echo "torchrun ${@@Q}"',
    "graphcl": 'echo "graphcl ${@@Q}"',
}


def shown():
    """The commands of the page: the blocks that it does not run, and those in YAML."""
    found = [one.text for one in blocks(PAGE) if one.language == "bash" and one.kind == "not run"]
    for one in blocks(PAGE):
        if one.language == "yaml":
            (listed,) = re.findall(r"command: \[(.*?)\]", one.text, re.DOTALL)
            found.append(" ".join(word.strip() for word in listed.split(",")))
    return found


def on_one_machine(text):
    """Returns a script for one machine, and leaves nothing that names many."""
    changes = {
        r"--nnodes[ =]4": "--nnodes 1",
        r"--nproc-per-node[ =]\d": "--nproc-per-node 2",
        r"--processes \d": "--processes 2",
        r"--runs 8": "--runs 2",
        r"first-host:29500|graphcl-0\.graphcl:29500": "localhost:29500",
        r"/(?:shared|data)/": "",
        r"(graphcl (?:train|evaluate) [^\n]+)": rf"\1 {QUICK}",
    }
    text = text.replace("\\\n", " ")
    for pattern, instead in changes.items():
        text = re.sub(pattern, instead, text)
    return f"set -e\n{text}\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A graph, a run, the graph in two parts, and the stand-ins."""
    folder = tmp_path_factory.mktemp("made")
    graph = random_graph()
    np.savez(folder / "mine.npz", **arrays_of(graph))
    graph.save(folder / "store")
    build_store(folder / "store", out=folder / "parts", parts=2, order="neighbours")
    GraphCL("default", epochs=1, dim=8, device="cpu").fit(graph).save(folder / "runs/cora")
    (folder / "bin").mkdir()
    for name, line in STAND_INS.items():
        (folder / "bin" / name).write_text(f"#!/bin/bash\n{line}\n")
        (folder / "bin" / name).chmod(0o755)
    return folder


def started(text, folder):
    """Returns the words of the commands that a block starts, in two processes each."""
    said = subprocess.run(
        ["bash", "-c", on_one_machine(text)],
        env=os.environ | SLURM | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for program, *words in map(shlex.split, said.splitlines()):
        if program == "graphcl":
            assert words[words.index("--processes") + 1] == "2"
            yield words
            continue
        given = get_args_parser().parse_args(words)
        assert (given.nnodes, given.nproc_per_node, given.rdzv_backend) == ("1", "2", "c10d")
        assert given.rdzv_endpoint == "localhost:29500"
        assert (given.module, given.training_script) == (True, "graphcl")
        yield given.training_script_args


def test_every_block_starts_what_runs_in_two_processes(made, tmp_path, monkeypatch):
    texts, done = shown(), []
    assert len(texts) == 8
    for number, text in enumerate(texts):
        here = tmp_path / str(number)
        shutil.copytree(made, here)
        monkeypatch.chdir(here)
        if "embed runs/mine parts" in text or "/data/parts" in text:
            (here / "runs/cora").rename(here / "runs/mine")
        for words in started(text, made):
            if words in done:
                continue  # another program starts the same
            done.append(words)
            code, _, err = command(*words)
            assert code == 0, (words, err)
            if "shards.parquet" in words:
                assert open_shards(here / "shards.parquet").shape[0] == 60
    assert sorted(words[0] for words in done) == ["embed"] * 4 + ["evaluate"] + ["train"] * 4


def test_torchrun_itself_starts_two_processes(made, tmp_path):
    """They meet on this machine's loopback, and leave a run; the first one speaks."""
    here = tmp_path / "here"
    shutil.copytree(made, here)
    program = f'#!/bin/bash\nexec {warm()} -m torch.distributed.run "$@"\n'
    (here / "bin/torchrun").write_text(program)
    done = subprocess.run(
        ["bash", "-c", on_one_machine(shown()[1]).replace(":29500", f":{free_port()}")],
        cwd=here,
        env=os.environ | {"PATH": f"{here / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("; recipe default; cpu") == 1
    assert (here / "runs/mine/model.safetensors").exists()


def test_bash_reads_the_script_for_slurm():
    """What it starts is tested above: a page shows it as it is."""
    assert subprocess.run(["bash", "-n", CLUSTERS / "slurm.sh"], check=False).returncode == 0
    lines = (CLUSTERS / "slurm.sh").read_text().splitlines()
    asked = " ".join(line for line in lines if line.startswith("#SBATCH")).split()
    assert {"--nodes=4", "--ntasks-per-node=1", "--gpus-per-node=8", "--requeue"} <= set(asked)
    assert "--nproc-per-node 8" in " ".join(lines)  # a process for each GPU


def test_the_manifest_is_of_kubernetes_schema_and_fits_together():
    validate = pytest.importorskip("kubernetes_validate")
    service, job = yaml.safe_load_all((CLUSTERS / "kubernetes.yaml").read_text())
    for one in (service, job):
        validate.validate(one, validate.latest_version(), strict=True)
    wrong = {**job, "spec": {**job["spec"], "completion": 4}}
    with pytest.raises(validate.ValidationError, match="completion"):
        validate.validate(wrong, validate.latest_version(), strict=True)
    name, pod = job["metadata"]["name"], job["spec"]["template"]["spec"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    (container,) = pod["containers"]
    given = get_args_parser().parse_args(container["command"][1:])
    assert given.rdzv_endpoint == f"{name}-0.{pod['subdomain']}:29500"
    assert int(given.nnodes) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert int(given.nproc_per_node) == container["resources"]["limits"]["nvidia.com/gpu"]
    (volume,), (mount,) = pod["volumes"], container["volumeMounts"]
    assert volume["name"] == mount["name"]
    graph, out = (Path(word) for word in given.training_script_args[1::2][:2])
    assert {graph.parts[1], out.parts[1]} == {mount["mountPath"][1:]}
