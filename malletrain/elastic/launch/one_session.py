"""A job trains one session: its `finish()` completes the job, and whatever the script trains after it never runs."""

from __future__ import annotations

import ast
import linecache
import os
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

import malletrain
from malletrain.elastic.errors import ElasticError

_CURE = (
    "a job trains one session, and finish() completes the job. Submit a job for each fold or stage "
    "(mtbatch script.sh --fold=K), with the model kept in a file where a later one goes on from it"
)

_OTHERS = tuple(
    str(Path(path).resolve()) + os.sep
    for path in (*malletrain.__path__, *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
)

_made_at: list[str] = []


def require_one(frame: FrameType | None, environ: Mapping[str, str]) -> None:
    """Look at where a session is made, before anything is trained. `frame`: of the session's
    own constructor, or of what calls it.

    Raises:
        ElasticError: in a job, the script makes another one, or is seen to make one after it.
    """
    if "MALLETRAIN_URL" not in environ or "MALLETRAIN_JOB" not in environ:
        return
    places = list(_of_script(frame))
    here = f"{Path(places[0][0]).name}:{places[0][1]}" if places else "the script"
    if _made_at:
        raise ElasticError(f"a second Session at {here}, after that of {_made_at[0]}: {_CURE}")
    for file, line in places:
        why = _made_again(file, line)
        if why:
            raise ElasticError(f"{Path(file).name}:{line} {why}: {_CURE}")
    _made_at.append(here)


def _of_script(frame: FrameType | None) -> Iterator[tuple[str, int]]:
    """File and line of each frame of the script's own, from the innermost out to the main module."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith("<") and not str(Path(file).resolve()).startswith(_OTHERS):
            yield file, frame.f_lineno
            if frame.f_globals.get("__name__") == "__main__" and frame.f_code.co_name == "<module>":
                return
        frame = frame.f_back


def _made_again(file: str, line: int) -> str:
    """Why the session of this line, or of a call in it, is not the only one; "" where nothing shows it."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ""
    around = [node for node in ast.walk(_scope(tree, line)) if _holds(node, line)]
    for node in around:
        if isinstance(node, ast.For) and line >= node.body[0].lineno:
            return f"makes a Session in each turn of the loop of line {node.lineno}"
    for node in around:
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            makers = [each for each in block if _makes(each)] if isinstance(block, list) else []
            if len(makers) > 1 and _holds(makers[0], line):
                return f"makes a Session, and line {makers[1].lineno} another one after it"
    return ""


def _scope(tree: ast.Module, line: int) -> ast.AST:
    """The innermost function, else the module, that a line is in."""
    scope: ast.AST = tree
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _holds(node, line):
            scope = node
    return scope


def _holds(node: ast.AST, line: int) -> bool:
    if isinstance(node, ast.Module):
        return True
    return getattr(node, "lineno", line + 1) <= line <= (getattr(node, "end_lineno", None) or 0)


def _makes(statement: ast.stmt) -> bool:
    """Whether a statement itself makes a session, and is no definition."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return False
    return any(
        isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "Session"
        for node in ast.walk(statement)
    )
