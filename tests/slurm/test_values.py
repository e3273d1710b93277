"""Single values and node lists, well formed and not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.errors import InvalidInput
from malletrain.slurm.formats import hostlist, scalars


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1-02:03:04", 93784.0),
        ("02:03:04", 7384.0),
        ("3:04", 184.0),
        ("5", 300.0),
        ("1-02", 93600.0),
        ("1-02:03", 93780.0),
        ("00:01:00", 60.0),
        ("UNLIMITED", None),
        ("INFINITE", None),
        ("N/A", None),
        ("NOT_SET", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert scalars.duration(text) == seconds


@given(st.integers(0, 365), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_durations_as_slurm_prints_them(days: int, hours: int, minutes: int, seconds: int) -> None:
    whole = days * 86400 + hours * 3600 + minutes * 60 + seconds
    assert scalars.duration(f"{days}-{hours:02}:{minutes:02}:{seconds:02}") == whole


def test_moments() -> None:
    assert scalars.moment("1795192315") == 1795192315.0
    assert scalars.moment("Unknown") is None
    assert scalars.moment("0") is None
    local = scalars.moment("2024-07-01T12:00:00")
    assert local is not None
    assert scalars.moment("2024-07-01T12:00:01") == local + 1
    with pytest.raises(InvalidInput):
        scalars.moment("2024-02-30T12:00:00")
    with pytest.raises(InvalidInput):
        scalars.moment("yesterday")


@given(st.text(max_size=30))
def test_no_value_breaks_a_parser(text: str) -> None:
    for parse in (scalars.duration, scalars.moment, scalars.tasks, hostlist.expand):
        try:
            parse(text)
        except InvalidInput as error:
            assert "\n" not in str(error)
    assert scalars.count_tasks(text) >= 1
    assert isinstance(scalars.number(text), int)


@pytest.mark.parametrize(
    ("text", "tasks"),
    [
        ("0-3", (0, 1, 2, 3)),
        ("[1,3,5-6]", (1, 3, 5, 6)),
        ("0-30:10", (0, 10, 20, 30)),
        ("7-8%1", (7, 8)),
        ("4", (4,)),
    ],
)
def test_tasks(text: str, tasks: tuple[int, ...]) -> None:
    assert scalars.tasks(text) == tasks


def test_tasks_that_slurm_cut_off_are_refused_and_counted_as_far_as_shown() -> None:
    with pytest.raises(InvalidInput, match="SLURM_BITSTR_LEN"):
        scalars.tasks("0-9,12,...")
    assert scalars.count_tasks("0-9,12,...") == 11
