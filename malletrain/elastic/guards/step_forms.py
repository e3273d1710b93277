"""Knows which kinds of steps have been examined, and when one that has not is expected again.

Guards look closely at some steps only. What a script does at every sixteenth step, or from an epoch on, may be in
none of them. The graph of the loss tells such a step from others: its form. A form that has been met twice comes
again, as far as one can tell, after as many steps as lay between, and the step in which it does is worth a look.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from malletrain.elastic.guards.digest import digest_of_text
from malletrain.elastic.guards.loss_graph import nodes_behind

#: Nodes of a loss's graph that tell its form, nearest first: its terms, not its model.
MAX_NODES = 48

#: Forms that are remembered until they are examined. A script with more has graphs that follow from its samples.
MAX_FORMS = 64

#: Steps that are examined because a form was expected, in one training: guesses may be wrong.
MAX_EXPECTED = 16


def form_of(roots: Iterable[Any], before: int = 0) -> int:
    """A positive number that tells losses apart by the nearest nodes of their graphs.

    Args:
        roots: the nodes that have made them.
        before: the form of the earlier losses of the step.
    """
    return digest_of_text(f"{before} {' '.join(node.name() for node in nodes_behind(roots, MAX_NODES))}")


class StepForms:
    """The forms of the steps of this worker, and which of them one way to examine steps has met."""

    def __init__(self) -> None:
        self._examined: dict[int, int] = {}  #: forms, with the step in which each was
        self._met: dict[int, int] = {}  #: when a form that has not been examined was met last
        self._expected: dict[int, int] = {}  #: forms by the step in which they are expected
        self._left = MAX_EXPECTED

    def made(self, step: int, form: int, *, examined: bool) -> None:
        """A step is made.

        Args:
            step: its number.
            form: of it.
            examined: whether it was.
        """
        self._expected.pop(step, None)
        if examined:
            self._examined.setdefault(form, step)
            self._met.pop(form, None)
        elif form not in self._examined and len(self._met) < MAX_FORMS:
            earlier = self._met.get(form)
            if earlier is not None:
                self._expected[2 * step - earlier] = form
            self._met[form] = step

    def not_examined(self, step: int) -> None:
        """Nothing has become known of a step that is said to have been examined."""
        for form in [form for form, at in self._examined.items() if at == step]:
            del self._examined[form]

    def expects(self, step: int) -> bool:
        """Whether a form that has not been examined is expected in a step."""
        return self._left > 0 and self._expected.get(step, 0) in self._met

    def take(self) -> None:
        """A step is examined because a form is expected in it."""
        self._left -= 1
