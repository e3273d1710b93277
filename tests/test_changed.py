"""`scripts/test --changed`: which tests a change concerns."""

from __future__ import annotations

from pathlib import PurePosixPath

from scripts import changed

HERE = PurePosixPath("tests/test_changed.py")
ELSEWHERE = PurePosixPath("tests/decide/test_yielding.py")


def test_distance_is_the_shortest_chain_of_imports() -> None:
    importers = {"a": ["b", "c"], "b": ["c"], "c": ["d", "a"], "x": ["y"]}
    assert changed.distances(importers, ["a"]) == {"a": 0, "b": 1, "c": 1, "d": 2}


def test_tests_that_import_what_changed_come_nearest_first() -> None:
    texts = {HERE: "", ELSEWHERE: "", PurePosixPath("tests/sizing/test_fit.py"): ""}
    found = changed.tests_for([PurePosixPath("malletrain/decide/yielding.py"), HERE], texts)
    assert found[:2] == [HERE, ELSEWHERE]


def test_a_file_that_is_not_python_concerns_the_tests_that_name_it() -> None:
    texts = {HERE: "reads sql/views.sql", ELSEWHERE: "reads nothing"}
    assert changed.tests_for([PurePosixPath("sql/views.sql")], texts) == [HERE]


def test_a_program_without_a_suffix_is_named_by_its_path() -> None:
    texts = {HERE: "runs scripts/test", ELSEWHERE: "a test"}
    assert changed.tests_for([PurePosixPath("scripts/test")], texts) == [HERE]


def test_a_package_is_named_by_its_folder() -> None:
    assert changed.module_of(PurePosixPath("malletrain/cli/__init__.py")) == "malletrain.cli"
