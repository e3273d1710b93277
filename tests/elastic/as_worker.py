"""Runs a training script as a worker does, with a credential that the tests' coordinator knows."""

from __future__ import annotations

import faulthandler
import logging
import runpy
import signal
import sys

import torch

from malletrain.wire import worker_client

if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(threadName)s %(message)s")
    torch.set_num_threads(1)
    worker_client.credential_for = lambda url: "credential-for-tests"
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
