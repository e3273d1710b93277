"""Runs the launcher with a credential that the tests' coordinator knows."""

from __future__ import annotations

import sys
import threading

from malletrain.elastic.launch import launcher
from malletrain.wire import worker_client

if __name__ == "__main__":
    worker_client.credential_for = lambda url: "credential-for-tests"
    launcher.REQUEUE_TIMEOUT_S = 3.0  # type: ignore[attr-defined]  # for this process
    if sys.argv[1] == "--requeue":
        launcher.REQUEUE_TIMEOUT_S = float(sys.argv[2])  # type: ignore[attr-defined]
        del sys.argv[1:3]
    if sys.argv[1] == "--thread":
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        del sys.argv[1]
    if sys.argv[1] == "--patience":
        launcher.HELLO_TIMEOUT_S = float(sys.argv[2])
        del sys.argv[1:3]
    sys.exit(launcher.main(sys.argv[1:]))
