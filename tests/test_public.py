"""The public names of the package, and when torch is imported."""

from pathlib import Path

import pytest

import graphcl
from tests.cli.conftest import call

ROOT = Path(__file__).parents[1]


def test_the_library_imports_torch_when_it_is_used_and_not_before():
    code = (
        "import sys, graphcl; assert 'torch' not in sys.modules; graphcl.Graph, graphcl.GraphCL; "
        "assert 'torch' in sys.modules and graphcl.__version__; assert 'nt_xent' in dir(graphcl)"
    )
    done = call("-c", code)
    assert done.returncode == 0, done.stderr


def test_an_unknown_attribute_of_the_package():
    import graphcl

    with pytest.raises(AttributeError, match="no attribute 'Grahp'"):
        _ = graphcl.Grahp


def test_all_is_what_is_visible():
    submodules = {path.stem for path in (ROOT / "src/graphcl").iterdir()}
    foreign = {"import_module", "TYPE_CHECKING", "Any"}
    visible = {name for name in dir(graphcl) if not name.startswith("_")} - submodules - foreign
    assert all(getattr(graphcl, name).__name__ == name for name in graphcl.__all__)
    assert visible == set(graphcl.__all__)
    assert sorted(graphcl.__all__) == list(graphcl.__all__)
    assert len(graphcl.__all__) <= 20
