"""Runs the launcher with a credential that the tests' coordinator knows.

Environment: REQUEUE=S, PATIENCE=S: for how long it waits to be requeued, and for a daemon. THREAD: it has another
thread, which does nothing.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading

from malletrain.elastic.launch import launcher
from malletrain.wire import worker_client

if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    worker_client.credential_for = lambda url: "credential-for-tests"
    launcher.REQUEUE_TIMEOUT_S = float(os.environ.get("REQUEUE", "3"))  # type: ignore[attr-defined]
    launcher.HELLO_TIMEOUT_S = float(os.environ.get("PATIENCE", "60"))
    if "THREAD" in os.environ:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    sys.exit(launcher.main(sys.argv[1:]))
