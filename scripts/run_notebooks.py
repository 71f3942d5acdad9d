"""Runs the notebooks of examples/ and keeps what they print.

usage: cd examples && python ../scripts/run_notebooks.py

Cells of code run from top to bottom, in this process and folder. What a cell prints, or the value
of its last line, becomes its output.
"""

import ast
import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def executed(notebook: dict[str, Any]) -> Iterator[str]:
    """Runs the cells of a notebook, one after the other, and yields what each one shows."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] != "code":
            continue
        body = ast.parse("".join(cell["source"])).body
        last = body.pop() if isinstance(body[-1], ast.Expr) else None
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(io.StringIO()):
            exec(compile(ast.Module(body, []), f"cell {number}", "exec"), names)  # noqa: S102
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "", "eval"), names)  # noqa: S307
                if value is not None:
                    print(repr(value))
        yield shown.getvalue()


def main() -> None:
    """Runs every notebook of this folder and writes it with its outputs."""
    for path in sorted(Path().glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        for cell, text in zip(cells, executed(notebook), strict=True):
            lines = text.splitlines(keepends=True)
            stream = {"output_type": "stream", "name": "stdout", "text": lines}
            cell["outputs"], cell["execution_count"] = [stream] if lines else [], None
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
