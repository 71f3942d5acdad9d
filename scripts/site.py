"""What the site has beside the pages: the API, notebooks, mathematics, files that pages link to.

MkDocs calls the functions whose names begin with ``on_`` (`hooks` in mkdocs.yml). Pages of docs/
are written for readers of the repository: a link to a file outside docs/ leads to the file. The
site has a copy of each such file as plain text. Formulas become MathML, which browsers show
without a script.
"""

import importlib.util
import json
import os
import re
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(\]\()(\.\./[^)\s#]+)(#[^)\s]+)?\)")
MATHS = re.compile(r"^```math\n(.*?)^```$|\$`([^`]+)`\$", re.DOTALL | re.MULTILINE)
SAID = re.compile(r"^<!-- (?:file|test|not run): [^\n]*-->\n", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the API page, the notebooks, and the files that pages link to."""
    files.append(File.generated(config, "api.md", content=_script("build_api_page").page()))
    for path in sorted((ROOT / "examples").glob("*.ipynb")):
        text = notebook(json.loads(path.read_text(encoding="utf-8")))
        files.append(File.generated(config, f"examples/{path.stem}.md", content=text))
    linked = set()
    for page in files.documentation_pages():
        if (ROOT / "docs" / page.src_uri).exists():
            for _, target, _ in LINK.findall(page.content_string):
                linked |= {_outside(page.src_uri, target)} - {None}
    for target in sorted(linked):
        if not target.endswith(".ipynb"):
            files.append(File.generated(config, _copy(target), content=_text(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Leads links to the copies, sets formulas aside, and drops what is meant for the tests."""

    def link(match: re.Match[str]) -> str:
        target = _outside(page.file.src_uri, match[2])
        if target is None:
            return match[0]
        there = target.replace(".ipynb", ".md") if target.endswith(".ipynb") else _copy(target)
        return f"]({os.path.relpath(there, PurePosixPath(page.file.src_uri).parent)})"

    formulas: list[str] = []

    def formula(match: re.Match[str]) -> str:
        display = match[1] is not None
        formulas.append(
            convert((match[1] or match[2]).strip(), display="block" if display else "inline")
        )
        return f"formula{len(formulas) - 1}set"

    page.meta["formulas"] = formulas
    return SAID.sub("", MATHS.sub(formula, LINK.sub(link, markdown)))


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Puts the formulas in."""
    return re.sub(r"formula(\d+)set", lambda match: page.meta["formulas"][int(match[1])], html)


def notebook(found: dict[str, Any]) -> str:
    """Returns a notebook as Markdown: its text, its code, and what the code printed."""
    parts = []
    for cell in found["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for one in cell.get("outputs", ()):
            printed = one.get("text") or one["data"]["text/plain"]
            parts.append(f"```text\n{''.join(printed).rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _outside(page: str, target: str) -> str | None:
    """Returns the path in the repository of a link that leaves docs/, else None."""
    path = os.path.normpath(PurePosixPath("docs") / PurePosixPath(page).parent / target)
    return None if path.startswith("docs/") else path


def _copy(path: str) -> str:
    return f"repository/{path}/index.txt" if (ROOT / path).is_dir() else f"repository/{path}.txt"


def _text(path: Path) -> str:
    if path.is_dir():
        return (
            "\n".join(sorted(one.name for one in path.iterdir() if one.name[0] not in "._")) + "\n"
        )
    return path.read_text(encoding="utf-8")


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"scripts/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
