"""A module's test is where one looks first: `A/B.py` is tested in `tests/A/test_B.py`.

The functions of a package's `__init__.py` are tested in `tests/A/test_A.py`. `ELSEWHERE` and
`SEVERAL` are the exceptions.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src/graphcl"
TESTS = ROOT / "tests"

# Modules without a test file of their own, and the file that tests them. They are either a few
# lines that their callers exercise, or one half of something that is tested as a whole.
ELSEWHERE = {
    "__init__.py": "test_public.py",
    "__main__.py": "cli/test_main.py",
    "devices.py": "cli/test_main.py",
    "exporting/__init__.py": "test_run.py",
    "runs/graph.py": "cli/test_run_graphs.py",
    "cli/answers.py": "cli/test_predict.py",
    "encoders/paper.py": "encoders/test_encoders.py",
    "settings.py": "recipes/test_recipe.py",
    "version.py": "test_public.py",
    "losses/__init__.py": "estimator/test_fitted.py",
    "files/text.py": "runs/test_files.py",
    "kernels/gather_mean_triton.py": "kernels/test_gather_mean.py",
    "kernels/launching.py": "kernels/test_nt_xent_triton.py",
    "kernels/nt_xent_blocked.py": "losses/test_nt_xent.py",
    "kernels/nt_xent_rows_triton.py": "kernels/test_nt_xent_triton.py",
    "kernels/nt_xent_tiles_triton.py": "kernels/test_nt_xent_triton.py",
    "kernels/parallel.py": "kernels/test_features.py",
    "kernels/triangles.py": "graphs/test_structural.py",
    "research/output.py": "research/studies/test_studies.py",
    "topology.py": "test_sampling.py",
    "partitioned/topology.py": "estimator/test_partitioned.py",
    "graphs/edges.py": "graphs/test_relation.py",
    "graphs/nodes.py": "graphs/test_graph.py",
    "tabular/nodes.py": "tabular/test_tables.py",
    "tabular/report.py": "tabular/test_kinds.py",
}

# Test files that are not about one module, and what they are about.
SEVERAL = {
    "test_docs.py": "the pages of docs/",
    "test_contributing.py": "CONTRIBUTING.md",
    "test_readme.py": "the README",
    "test_release.py": "one version everywhere, and what a release holds",
    "test_scaling_page.py": "the commands of docs/operate/scaling.md for many machines, on one",
    "test_spark.py": "the guide to Spark, and folders in its layout",
    "test_layout.py": "where the tests are",
    "test_public.py": "the public names",
    "cli/test_trained_over_parts.py": "runs over parts, in every order, through every command",
    "cli/test_parts.py": "`graphcl build --parts`, and `graphcl check` of parts",
    "cli/test_run_graphs.py": "whose word is taken for a run's graph, through every command",
    "test_edge_weights.py": "edge weights, from the constructors to the embeddings",
    "test_sampled_law.py": "the views of sampled trees against those of whole graphs",
    "test_from_store.py": "training and embedding from a store",
    "test_feature_scaling.py": "feature_scaling = auto, from training to the commands",
    "cli/test_wild_tables.py": "tables that change after the training, from train to embed",
    "tabular/test_typed.py": "tables of several types, through nodes, edges and options",
    "updating/test_days.py": "updates that move the day forward",
    "updating/test_typed.py": "updates of graphs with types, from tables to versions",
    "graphs/test_column_facts.py": "facts about columns, the first half of `scaling`",
    "kernels/test_columns.py": "what is done to columns, the first half of `stored_features`",
    "store/test_moving.py": "orders and moved rows, the first half of `partition`",
    "tabular/test_rows.py": "rows of requests, the second half of `kinds`",
    "tabular/test_vectors.py": "vectors beside a node table, the second half of `beside`",
    "tabular/test_odd_tables.py": "odd tables of every kind, by the hundred",
    "datasets/test_download.py": "downloads, and forged files of every kind in them",
    "estimator/test_typed.py": "the estimator on graphs with types",
    "estimator/test_smoothed.py": "smoothed features in embeddings, by every way to compute them",
    "estimator/test_sklearn.py": "what scikit-learn expects of the estimator",
    "benchmarks/test_guide.py": "the guide to the benchmarks",
    "training/test_cuda_graph.py": "recorded training steps on a GPU",
    "test_distributed_on_gpu.py": "several processes on GPUs",
    "research/systems/test_inductive_on_gpu.py": "the inductive baselines on a GPU",
    "test_dockerfile.py": "the Dockerfile",
    "cli/test_elsewhere.py": "the commands where what only Unix has is absent",
    "cli/test_every_graph.py": "every command on every kind of graph: docs/use/what-works.md",
    "cli/test_typed_graphs.py": "the commands on typed graphs, from tables to answers",
    "cli/test_several_graphs.py": "the commands on a dataset of several graphs",
    "reporting/test_browser.py": "the page and its script in a browser",
    "answers/test_leaks.py": "links of random graphs of every kind, from holding out to the score",
    "test_proposals.py": "what messages propose, in all modules",
}

# Folders of tests/ that do not mirror src/graphcl.
BEHAVIOUR = "behaviour"  # recorded outcomes of whole trainings
OTHERS = ("benchmarks", "scripts", "examples")  # each mirrors the folder of that name


def modules():
    """The modules that need a test; an `__init__.py` that defines nothing does not."""
    for path in SOURCE.rglob("*.py"):
        defines = any(
            isinstance(node, ast.FunctionDef | ast.ClassDef)
            for node in ast.parse(path.read_text()).body
        )
        if path.name != "__init__.py" or defines:
            yield path.relative_to(SOURCE).as_posix()


def mirror(module):
    path = Path(module)
    name = path.parent.name if path.name == "__init__.py" else path.stem
    return (path.parent / f"test_{name}.py").as_posix()


def found():
    return {path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")}


def test_every_module_has_a_test():
    untested = {module for module in modules() if mirror(module) not in found()}
    assert untested == ELSEWHERE.keys()


def test_every_exception_names_a_test():
    assert set(ELSEWHERE.values()) <= found()
    assert SEVERAL.keys() <= found()


def test_every_test_names_a_module():
    packages = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("__init__.py")}
    expected = {mirror(module) for module in {*modules(), *packages}}
    for folder in OTHERS:
        expected |= {f"{folder}/test_{path.name}" for path in (ROOT / folder).glob("*.py")}
    strange = {name for name in found() - expected if not name.startswith(f"{BEHAVIOUR}/")}
    assert strange == SEVERAL.keys()


@pytest.mark.parametrize("path", sorted((ROOT / "src/graphcl").rglob("*.py")), ids=lambda p: p.name)
def test_files_fit_in_the_head(path):
    assert len(path.read_text().splitlines()) <= 600


def test_test_files_fit_in_the_head():
    lines = {path.name: len(path.read_text().splitlines()) for path in TESTS.rglob("*.py")}
    assert {name: count for name, count in lines.items() if count > 600} == {}


def test_the_map_names_files_that_are_there():
    table = (ROOT / "CONTRIBUTING.md").read_text().split("the file that has it:")[1]
    named = re.findall(r"`([a-z_]+(?:/[a-z_*]+)?\.py)`", table.split("\n- ")[0])
    assert len(named) > 40
    assert [one for one in named if not list(SOURCE.glob(one))] == []
