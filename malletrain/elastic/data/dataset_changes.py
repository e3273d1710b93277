"""What a script does to its data set between two epochs: new negatives, another subset, corrected labels. All workers
must do it alike, also one that joins later.

What changes while samples are loaded (a cache, a list of what was seen) is each worker's own, and passed over.
"""

from __future__ import annotations

from typing import Any

from malletrain.elastic.data.dataset_digest import dataset_digest
from malletrain.elastic.errors import ElasticError


class DatasetChanges:
    """The changes of one data set.

    Args:
        dataset: of the session.
        begun: its digest as the session begins.
        in_processes: whether processes load, which have the data set as it was first.

    Attributes:
        digest: of the data set as the script has set it; "" while it has not changed it.
    """

    def __init__(self, dataset: Any, begun: str, *, in_processes: bool) -> None:
        self._dataset = dataset
        self._in_processes = in_processes
        self._before = begun
        self.digest = ""

    def epoch_begins(self) -> None:
        """Call it before an epoch's first sample is loaded.

        Raises:
            ElasticError: the data set has changed, and the processes that load do not see it.
        """
        now = dataset_digest(self._dataset)
        if now == self._before and not self.digest:
            return
        if self._in_processes and now != self._before:
            raise ElasticError(
                "the script has changed a list or tensor of its data set, and the processes that load have the old "
                "one: load without processes (num_workers=0). Numbers and text that it sets reach them"
            )
        self.digest = self._before = now

    def epoch_ended(self) -> None:
        """Call it when the samples of an epoch are loaded."""
        self._before = dataset_digest(self._dataset)
