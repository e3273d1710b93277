"""What a trial's process runs: `python -m malletrain.study.trial_main FOLDER`. Calls what the spec says; keeps the
trace of what fails.

Exit status: 0 when the training is finished; 1 when it failed, with `fault-RUN.json` in FOLDER; 143 as every worker
that was asked to leave.
"""

import contextlib
import importlib.util
import json
import os
import runpy
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path

from malletrain.elastic.link import standalone_record
from malletrain.study.trial_spec import TrialSpec, fault_file

#: A pipe whose other end the study holds: when it closes, the study has ended, and this process must end.
LIFELINE_FD = "MALLETRAIN_STUDY_FD"

#: Exception classes that say that memory ran out, by name: torch is not imported.
_MEMORY = frozenset({"MemoryError", "OutOfMemoryError"})

#: The same in words, where the class says nothing: torch's allocator on CPUs and cuBLAS raise RuntimeError.
_MEMORY_WORDS = ("can't allocate memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "Cannot allocate memory")


class Unfinished(Exception):
    """The training has returned, but never called finish(): end it with `s.finish({"accuracy": ...})`."""


def run(spec: TrialSpec) -> None:
    """Call the function, or run the script, in this process.
    Raises Unfinished: it returned without `Session.finish`; besides, whatever it raises."""
    sys.path.insert(0, str(Path(spec.file).parent))
    if spec.function:
        module_spec = importlib.util.spec_from_file_location(Path(spec.file).stem, spec.file)
        if module_spec is None or module_spec.loader is None:
            raise ImportError(f"{spec.file} is no Python file")
        module = importlib.util.module_from_spec(module_spec)
        sys.modules[module_spec.name] = module
        module_spec.loader.exec_module(module)
        getattr(module, spec.function)(**spec.params)
    else:
        sys.argv = [spec.file, *(f"--{name}={value}" for name, value in spec.params.items())]
        runpy.run_path(spec.file, run_name="__main__")
    if not standalone_record.FINISHED.is_set():
        raise Unfinished(f"{spec.function or spec.file}: {Unfinished.__doc__}")


def leave_word(spec: TrialSpec, error: BaseException) -> None:
    """Write what failed into the spec's folder, whole or not at all."""
    trace = "".join(traceback.format_exception(error))
    word = {
        "memory": any(_is_memory(each) for each in _chain(error)),
        "message": f"{type(error).__name__}: {error}"[:2000],
        "traceback": trace[-20_000:],
    }
    path = fault_file(spec.folder, os.environ.get("MALLETRAIN_JOB") or str(os.getpid()))
    draft = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    draft.write_text(json.dumps(word))
    draft.replace(path)


def _is_memory(error: BaseException) -> bool:
    said = isinstance(error, (RuntimeError, OSError)) and any(words in str(error) for words in _MEMORY_WORDS)
    return said or type(error).__name__ in _MEMORY


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def end_with_study(descriptor: int) -> None:
    """Kill this process and its children as soon as the other end of the pipe is closed."""

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(descriptor, 1):
                pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if len(argv) != 1:
        print("usage: python -m malletrain.study.trial_main FOLDER", file=sys.stderr)
        return 2
    lifeline = os.environ.pop(LIFELINE_FD, "")
    if lifeline.isdecimal():
        os.set_inheritable(int(lifeline), False)
        end_with_study(int(lifeline))
    spec = TrialSpec.read(argv[0])
    try:
        run(spec)
    except SystemExit as end:
        # A worker that leaves ends so (143), and so may a script that has finished.
        if end.code not in (None, 0, 143):
            leave_word(spec, end)
        elif end.code != 143 and not standalone_record.FINISHED.is_set():
            leave_word(spec, Unfinished(Unfinished.__doc__))
            return 1
        raise
    except BaseException as error:  # noqa: BLE001 - the user's code raises anything
        leave_word(spec, error)
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
