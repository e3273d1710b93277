"""`python -m malletrain.elastic.launch -- COMMAND...`."""

from __future__ import annotations

import sys

from malletrain.elastic.launch.launcher import main

if __name__ == "__main__":
    sys.exit(main())
