"""Finds, in a script's text, files that every worker would write: models saved, and tables or logs opened, outside
`if s.is_main:` and what `Options(when_main=...)` calls. A file whose name says which worker writes it is right."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from malletrain.script_check.script_scopes import calls_of, last_name, parsed

#: Calls that write a file: by their last name, and the names that must stand before it ("" for any).
_WRITERS = {
    "savez": ("np", "numpy"),
    "savetxt": ("np", "numpy"),
    "to_csv": ("",),
    "to_parquet": ("",),
    "write_text": ("",),
    "write_bytes": ("",),
    "save": ("torch",),
    "save_file": ("", "safetensors.torch"),
    "save_pretrained": ("",),
    "save_model": ("", "safetensors.torch"),
    "savefig": ("",),
}

#: What makes the name of a file one of this worker's alone, as a part of a variable or attribute, or of a string.
_OF_WORKER = ("rank", "worker", "host", "node", "pid", "uuid", "tmp", "temp")
_STRINGS_OF_WORKER = ("RANK", "SLURM")

#: Conditions of one worker.
_MAIN = (
    "is_main",
    "get_rank",
    "is_main_process",
    "is_world_process_zero",
    "is_global_zero",
    "rank",
    "local_rank",
    "global_rank",
)


@dataclass(frozen=True, slots=True, order=True)
class UnguardedWrite:
    """A call that writes a file on every worker: its line and name, `torch.save`."""

    line: int
    call: str


def unguarded_writes(text: str) -> list[UnguardedWrite]:
    """The calls of a script that trains with a session; none of a text that is no Python, or has no session."""
    tree = parsed(text)
    if tree is None:
        return []
    return sorted(_Search(tree).found)


class _Search:
    def __init__(self, tree: ast.Module) -> None:
        self.found: list[UnguardedWrite] = []
        nodes = list(ast.walk(tree))
        called = [each for call in calls_of(tree, "when_main") for each in call.args]  # as it was said before
        called += [node.value for node in nodes if isinstance(node, ast.keyword) and node.arg == "when_main"]
        #: What the main worker calls: functions by name, and the nodes of lambdas.
        self._of_main = {name for each in called for name in [last_name(each)] if name}
        self._lambdas = {each for each in called if isinstance(each, ast.Lambda)}
        #: Variables that are made of something of this worker.
        self._of_worker: set[str] = set()
        for node in nodes:
            if isinstance(node, ast.Assign) and self._is_of_worker(node.value):
                self._of_worker |= {ast.unparse(target) for target in node.targets}
        self._walk(tree, guarded=False)

    def _walk(self, node: ast.AST, *, guarded: bool) -> None:
        if (isinstance(node, ast.If | ast.IfExp) and _names_one(node.test)) or node in self._lambdas:
            guarded = True
        if isinstance(node, ast.Call) and not guarded and self._writes(node):
            self.found.append(UnguardedWrite(node.lineno, ast.unparse(node.func)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
            _returns_early(node) or node.name in self._of_main
        ):
            guarded = True
        for child in ast.iter_child_nodes(node):
            self._walk(child, guarded=guarded)

    def _writes(self, call: ast.Call) -> bool:
        before, _, last = ast.unparse(call.func).rpartition(".")
        if last == "open":
            if before in ("", "io", "gzip"):
                path, mode = call.args[:1], [*call.args[1:2], *_keyword(call, "mode")]
            else:  # a method of a path
                path, mode = [call.func], [*call.args[:1], *_keyword(call, "mode")]
            writes = any(isinstance(each, ast.Constant) and set(str(each.value)) & set("wax") for each in mode)
            return writes and not any(map(self._is_of_worker, path))
        owners = _WRITERS.get(last)
        known = owners is not None and (before in owners or ("" in owners and bool(before)))
        return known and not any(map(self._is_of_worker, [call.func, *call.args]))

    def _is_of_worker(self, node: ast.AST) -> bool:
        for each in ast.walk(node):
            if isinstance(each, ast.Name | ast.Attribute):
                name = ast.unparse(each)
                if name in self._of_worker or any(part in name.lower() for part in _OF_WORKER):
                    return True
            elif any(part in str(getattr(each, "value", "")) for part in _STRINGS_OF_WORKER):
                return True
        return False


def _keyword(call: ast.Call, name: str) -> list[ast.expr]:
    return [each.value for each in call.keywords if each.arg == name]


def _names_one(test: ast.AST) -> bool:
    """Whether a condition asks which worker this is."""
    return any(
        (isinstance(each, ast.Attribute) and each.attr in _MAIN) or (isinstance(each, ast.Name) and each.id in _MAIN)
        for each in ast.walk(test)
    )


def _returns_early(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function begins by `if not s.is_main: return`."""
    return any(
        isinstance(each, ast.If) and _names_one(each.test) and any(isinstance(x, ast.Return) for x in each.body)
        for each in function.body
    )
