"""Policies by name: the core's, and plug-ins, those of `malletrain.sizing.papers` and of other packages alike.

A package adds one with an entry point in the group `malletrain.policies` that names a class without arguments:

    [project.entry-points."malletrain.policies"]
    ours = "our_package.sizing:Ours"
"""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint, entry_points

from malletrain.domain.errors import InvalidInput
from malletrain.sizing.policy import Policy

GROUP = "malletrain.policies"
DEFAULT = "auto"

#: Those that are always there. Imported when asked for: a solver takes a tenth of a second.
CORE = {
    "auto": "malletrain.sizing.policies.exact:Auto",
    "equal": "malletrain.sizing.policies.equal:Equal",
    "exact": "malletrain.sizing.policies.exact:Exact",
    "goodput": "malletrain.sizing.policies.goodput:Goodput",
    "lp": "malletrain.sizing.policies.lp:Lp",
    "milp": "malletrain.sizing.policies.milp.milp_policy:Milp",
}


def names() -> tuple[str, ...]:
    """Every known policy's name, sorted."""
    return tuple(sorted({*CORE, *(e.name for e in entry_points(group=GROUP))}))


def policy(name: str) -> Policy:
    """The policy of that name. Names of the core cannot be taken by others.
    Raises InvalidInput: no such policy, with the known ones; or one that does not load, with why."""
    if name in CORE:
        module, _, attribute = CORE[name].partition(":")
        found: Policy = getattr(importlib.import_module(module), attribute)()
        return found
    matching = [e for e in entry_points(group=GROUP) if e.name == name]
    if not matching:
        raise InvalidInput("policy", f"{name!r} is not known; known are {', '.join(names())}")
    if len({e.value for e in matching}) > 1:
        raise InvalidInput("policy", f"{name!r} is added by several packages: {', '.join(e.value for e in matching)}")
    return _load(matching[0])


def _load(entry: EntryPoint) -> Policy:
    try:
        made = entry.load()()
    except Exception as error:  # a plug-in may fail in any way; the name of the culprit is what helps
        raise InvalidInput("policy", f"{entry.name!r} ({entry.value}) does not load: {error}") from error
    if not isinstance(made, Policy):
        raise InvalidInput(
            "policy", f"{entry.name!r} ({entry.value}) is not a policy: subclass malletrain.sizing.policy.Policy"
        )
    return made
