"""Policies by name."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from malletrain.domain.errors import InvalidInput
from malletrain.sizing import registry
from malletrain.sizing.policy import Policy
from tests.corpus import doors
from tests.sizing.problems import shipped


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_policy_loads_under_its_own_name(name: str) -> None:
    policy = registry.policy(name)
    assert isinstance(policy, Policy)
    assert policy.name == name


def test_policies_of_papers_come_by_the_entry_points_that_others_use() -> None:
    papers = set(shipped()) - set(registry.CORE)
    assert papers == {"budget", "deadline", "efficiency", "elastic_batch", "greedy", "matching", "utility"}


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match=r"'best' .* auto, .*milp"):
        registry.policy("best")


def _installed(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> None:
    found = [EntryPoint(name, value, registry.GROUP) for name, value in entries]
    monkeypatch.setattr(registry, "entry_points", lambda group: found if group == registry.GROUP else [])


def test_other_packages_add_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, ("ours", "malletrain.sizing.policies.equal:Equal"))
    assert registry.policy("ours").name == "equal"
    assert "ours" in registry.names()
    assert "ours" not in doors.policies(), "the recorded behaviour is that of the policies shipped"


def test_a_policy_of_the_core_cannot_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, ("exact", "malletrain.sizing.policies.equal:Equal"))
    assert registry.policy("exact").name == "exact"


@pytest.mark.parametrize("value", ["no.such:Thing", "json:nothing", "json:dumps", "builtins:object"])
def test_a_plug_in_that_does_not_load_is_named(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    _installed(monkeypatch, ("broken", value))
    with pytest.raises(InvalidInput, match=f"'broken' .{value}"):
        registry.policy("broken")


def test_two_packages_with_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, ("x", "a:A"), ("x", "b:B"))
    with pytest.raises(InvalidInput, match="several packages"):
        registry.policy("x")
