"""What a job asks of each of its nodes, generic resources, features and memory, and whether a node has it.

Slurm holds a task that is released onto a node without it (reason BadConstraints; measured, 22.05), so it is matched
before. Expressions are sbatch(1)'s (`--gres`, `--constraint`). What only Slurm can weigh (counts of nodes, a form
that is not known here) counts as met; where Slurm then refuses the task, the job rests on that node.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from malletrain.domain.snapshot import Node

_GRES = re.compile(
    r"(?:gres[:/])?(?P<name>[A-Za-z0-9_-]+)(?::(?P<type>(?!\d+[KMGT]?(?::|\Z))[^:(,=]+))?(?::no_consume)?"
    r"(?:[:=](?P<count>\d+)(?P<unit>[KMGT]?))?\Z"
)
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_WORD = r"[^()\[\]&|,\s]+"
_CHOICE = rf"(?:{_WORD}|[(\[]{_WORD}(?:\|{_WORD})*[)\]])"
_FORM = re.compile(rf"{_CHOICE}(?:[&,]{_CHOICE})*|{_WORD}(?:\|{_WORD})+")


@dataclass(frozen=True, slots=True)
class Requirements:
    """Generic resources of each node as `--gres` names them, a feature expression as `--constraint` does, and MiB of
    memory, as `--mem` or a default of the partition has them."""

    gres: str = ""
    features: str = ""
    memory_mib: int = 0

    def __bool__(self) -> bool:
        return bool(self.gres or self.features or self.memory_mib)

    def __str__(self) -> str:
        gres = re.sub(r"(^|,)gres[:/]", r"\1", self.gres)
        parts = (
            f"gres {gres}" if self.gres else "",
            f"constraint {self.features}" if self.features else "",
            f"{self.memory_mib} MiB of memory" if self.memory_mib else "",
        )
        return " and ".join(part for part in parts if part)

    def satisfied_by(self, node: Node) -> bool:
        """Whether the node has all of it."""
        # A node without RealMemory in slurm.conf has 1 MiB: nothing is known of it. squeue rounds 2500M to 2.44G.
        has_memory = node.memory_mib <= 1 or node.memory_mib * 1.005 >= self.memory_mib
        return has_memory and self.satisfied_by_one_with(node.gres, node.features)

    def satisfied_by_one_with(self, gres: str, features: tuple[str, ...]) -> bool:
        """Whether a node of these generic resources and features has them; memory is not looked at."""
        return _has_gres(self.gres, gres) and has_features(self.features, features)


@lru_cache(maxsize=4096)
def _has_gres(wanted: str, there: str) -> bool:
    """Whether a node of `there` (`gpu:a100:4(S:0-1),shard:16`) has all of `wanted` (`gpu:2`, `gpu:a100`)."""
    if not wanted:
        return True
    of_node = _counts(there)
    for name, of_type, count in _counts(wanted):
        found = sum(each[2] for each in of_node if each[0] == name and of_type in ("", each[1]))
        if found < count:
            return False
    return True


def _counts(gres: str) -> list[tuple[str, str, int]]:
    """(name, type or '', count) of each part; a part that cannot be read is left out."""
    found = []
    # What is in brackets says to which sockets or indices a resource belongs.
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        match = _GRES.match(part.strip())
        if match is not None and match["name"] not in ("none", "null"):
            count = int(match["count"] or 1) * _UNITS[match["unit"] or ""]
            found.append((match["name"], match["type"] or "", count))
    return found


@lru_cache(maxsize=4096)
def has_features(expression: str, features: tuple[str, ...]) -> bool:
    """Whether a node of these features satisfies `expression`: `a&b`, `a|b`, `(a|b)&c`, `[a|b]`.

    True where it has another form, and of `!a` and `a*2`, which Slurm weighs.
    """
    if expression == "(null)" or not _FORM.fullmatch(expression):
        return True
    choices = (re.findall(_WORD, choice) for choice in re.split("[&,]", expression))
    return all(any(word in features or word[0] == "!" or "*" in word for word in words) for words in choices)
