"""A process of its own that folds a journal's next image, at the lowest priority: `python -m ... JOURNAL`.

It writes to its standard output a line of JSON (`seq`, `fold`) and then the state; nothing where no event has come
since the last image. Folding in the daemon itself would hold Python's lock while workers wait.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from malletrain.daemon.image.folded_state import next_image
from malletrain.domain.errors import MalletrainError

#: Of nice(2): the lowest.
_NICENESS = 19


def main(journal: Path) -> int:
    """Fold the image of `journal` and write it; the exit status."""
    os.nice(_NICENESS)
    try:
        image = next_image(journal)
    except MalletrainError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    if image is not None:
        sys.stdout.buffer.write(json.dumps({"seq": image.seq, "fold": image.fold}).encode() + b"\n" + image.state)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
