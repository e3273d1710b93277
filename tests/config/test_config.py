"""The configuration: every fault at once, each with its file, line and key, and nothing else ever raised."""

import re
import string
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from malletrain import config
from malletrain.config import ConfigError, parse
from malletrain.config.gone import GONE
from malletrain.config.sections import SECTIONS, TABLES, Config
from tests.messages import naming, says

FAULTY = """\
operatos = ["ann"]
tick_s = 3
[slurm]
partition = "har vest"
acount = "x"
[pilot]
margin_s = "autom"
max_minutes = 90
[loop]
tick_s = "5"
[pool]
include = ["n[1-", "n[1-3]"]
[api]
port = 99999
url = "ftp:/x"
[store]
path = "x.db"
[zzz]
a = 1
"""

SAID = [
    ("f.toml:4: slurm.partition:", "_ . - + @", "'har vest'"),
    ("f.toml:5: slurm.acount:", "account?"),
    ("f.toml:12: pool.include.0:", "n[001-128]", "'n[1-'"),
    ("f.toml:8: pilot.max_minutes:", 60, 90),
    ("f.toml:7: pilot.margin_s:", "'auto'", "'autom'", "number", "'autom'"),
    ("f.toml:10: loop.tick_s:", "number", "'5'"),
    ("f.toml:14: api.port:", 65535, 99999),
    ("f.toml:15: api.url:", "http://head.example.org:8470", "'ftp:/x'"),
    ("f.toml:17: store.path:", "'x.db'"),
    ("f.toml:1: operatos:", "operators?"),
    *((f"f.toml:{line}: {key}:", f"operators, {', '.join(SECTIONS)}") for line, key in ((2, "tick_s"), (18, "zzz"))),
]


def faults(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "f.toml")
    assert str(caught.value).splitlines() == list(caught.value.faults)
    return list(caught.value.faults)


def test_every_fault_is_named_at_once() -> None:
    found = faults(FAULTY)
    assert len(found) == len(SAID)
    assert all(says(fault, *said) for fault, said in zip(found, SAID, strict=True)), found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("slurm = 3", ("f.toml:1: slurm:", "[slurm]")),
        ("[[slurm]]\n", ("f.toml:1: slurm:", "[slurm]")),
        ("[slurm]\nx y = 1\n", ("f.toml:", "TOML", "'='", "line 2, column 3")),
        ("slurm.acct = 'x'\n", ("f.toml:1: slurm.acct:", "account?")),
        ("[notify]\nhook = ['mail', '-s']\n", ("f.toml:2: notify.hook:", "'mail'", "['mail', '-s']")),
    ],
)
def test_one_fault(text: str, said: tuple[str, ...]) -> None:
    (fault,) = faults(text)
    assert says(fault, *said)


def test_an_empty_file_is_a_configuration() -> None:
    assert parse("", "f.toml") == Config()


def test_numbers_may_be_whole_where_fractions_are_allowed() -> None:
    assert parse("[loop]\ntick_s = 15\n", "f").loop.tick_s == 15.0


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=naming("no.toml:", "(No such file")):
        config.load(tmp_path / "no.toml")


def test_a_file_that_is_not_text_says_so(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_bytes(b"[slurm]\n\xff\xfe")
    with pytest.raises(ConfigError, match=r"c\.toml: is not UTF-8 text \(byte 8\)"):
        config.load(tmp_path / "c.toml")


def test_a_users_daemon_needs_no_file(tmp_path: Path) -> None:
    made = config.load_for_user({"HOME": str(tmp_path)})
    assert made.store.path == str(tmp_path / ".local/state/malletrain/malletrain.db")
    assert made.api.port == 0
    assert made.slurm == Config().slurm


def test_a_users_file_wins_over_the_defaults_of_user_mode(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[slurm]\npartition = 'scavenge'\n[api]\nport = 9000\n")
    made = config.load_for_user({"XDG_STATE_HOME": str(tmp_path / "s"), "HOME": "/h"}, file)
    assert (made.slurm.partition, made.api.port) == ("scavenge", 9000)
    assert made.store.path == str(tmp_path / "s/malletrain/malletrain.db")


def test_without_a_home_there_is_no_place_for_the_journal() -> None:
    with pytest.raises(ConfigError, match="set HOME or XDG_STATE_HOME"):
        config.load_for_user({"XDG_STATE_HOME": "relative"})


def test_nothing_can_be_changed_later() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().slurm.partition = "other"


keys = st.sampled_from(
    ["operators", "tick_s", "x", *SECTIONS, *(key for section in SECTIONS.values() for key in section.model_fields)]
)
values = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(str),
    st.booleans().map(lambda value: str(value).lower()),
    st.text(string.ascii_letters + string.digits + " ./[-]{}#=,:é\t", max_size=12).map(lambda text: f"'{text}'"),
    st.just("[]"), st.just("[1, 'a']"), st.just("{a = 1}"), st.just("2026-01-01"), st.just("'''a\ntick_s = 1'''"),
)  # fmt: skip
lines = st.one_of(
    st.tuples(keys, values).map(lambda pair: f"{pair[0]} = {pair[1]}"),
    keys.map(lambda key: f"[{key}]"),
    keys.map(lambda key: f"[[{key}]]"),
    st.text(max_size=8),
)


@given(st.lists(lines, max_size=8).map("\n".join))
@example("[" * 100)
@example("a=" + "[" * 3000)
@example("slurm.partition.x = 1")
@example("[[slurm]]\n[slurm.x]\n")
def test_whatever_the_text_it_is_a_configuration_or_faults_with_keys(text: str) -> None:
    try:
        made = parse(text, "f.toml")
    except ConfigError as error:
        assert error.faults
        for fault in error.faults:
            assert re.match(r"f\.toml:(\d+:)? ", fault) and "\n" not in fault
            assert "pydantic" not in fault.lower()
    else:
        assert isinstance(made, Config)


@pytest.mark.parametrize("path", [path for path in GONE if path[:-1] not in TABLES], ids=".".join)
@pytest.mark.parametrize("value", ["3", "[[1]]", "{ a = 1 }"])
def test_a_key_that_is_gone_is_named_and_starts(path: tuple[str, ...], value: str) -> None:
    made = parse(f"{'.'.join(path)} = {value}\noperators = ['ann']\n", "f.toml")
    assert made.gone == (f"f.toml:1: {'.'.join(path)}: is gone, because {GONE[path]}; remove it",)
    assert made == Config(operators=["ann"]).with_gone(made.gone)


def test_keys_of_tables_that_are_gone_are_named_once_each_and_the_rest_of_the_table_stays() -> None:
    table = "[[sizing.limits]]\nname = 'w'\navailable = 9\nby_user = { ann = 2 }\n"
    made = parse(table + table.replace("by_user", "by_account"), "f.toml")
    assert [each.available for each in made.sizing.limits] == [9.0, 9.0]
    assert sorted(made.gone) == [
        f"f.toml:{line}: sizing.limits.{key}: is gone, because {GONE['sizing', 'limits', key]}; remove it"
        for line, key in ((4, "by_user"), (8, "by_account"))
    ]


def test_what_one_key_of_the_breaker_says_of_the_other_signs() -> None:
    shipped, large = Config().breaker, parse("[breaker]\npreemptions_per_hour = 40", "f.toml").breaker
    assert (shipped.faults_of_job, large.faults_of_job) == (3, 6)


@pytest.mark.parametrize(("tick", "watch"), [(10, 2.0), (15, 3.0), (1, 0.5)])
def test_the_queue_is_looked_at_five_times_a_tick(tick: int, watch: float) -> None:
    assert parse(f"[loop]\ntick_s = {tick}\n", "f.toml").loop.watch_interval_s == watch


def test_no_key_is_gone_and_there() -> None:
    for path in GONE:
        keys = Config.model_fields if len(path) == 1 else TABLES.get(path[:-1], SECTIONS[path[0]]).model_fields
        assert path[-1] not in keys


@pytest.mark.parametrize(
    ("text", "seconds"),
    [('"2s"', 2.0), ('"500ms"', 0.5), ('"1min"', 60.0), ('"1.5 s"', 1.5), ("3", 3.0), ("0.25", 0.25)],
)
def test_a_promise_is_given_in_seconds_or_with_its_unit(text: str, seconds: float) -> None:
    assert parse(f"[promise]\nmain_delay_p95 = {text}\n", "f.toml").promise.main_delay_p95 == seconds


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ('main_delay_p95 = "2 weeks"', "2 weeks"),
        ("main_delay_p95 = -1", "-1"),
    ],
)
def test_a_promise_that_cannot_be_is_refused(line: str, fault: str) -> None:
    assert any(says(each, "f.toml:2: promise.main_delay_p95:", fault) for each in faults(f"[promise]\n{line}\n"))


@pytest.mark.parametrize(("given", "ratio"), [('"off"', None), ('"auto"', 1.5), ("2", 2.0), ("1.25", 1.25)])
def test_the_controllers_budget(given: str, ratio: float | None) -> None:
    assert parse(f"[promise]\ncontroller_cycle = {given}\n", "f.toml").promise.cycle_ratio == ratio


@pytest.mark.parametrize("text", ["n[01-120]", "r[1-2]n[01-120],login1", "[1-3]", "n1, n2"])
def test_node_lists_that_slurm_opens_are_taken(text: str) -> None:
    assert parse(f'[pool]\ninclude = ["{text}"]\n', "f.toml").pool.include == [text]


@pytest.mark.parametrize("text", ["", "@all", "n[1-", "n[a-b]", "n1;n2", "n[1-2]/3"])
def test_what_is_no_node_list_is_refused(text: str) -> None:
    assert says(faults(f'[pool]\nexclude = ["{text}"]\n')[0], "f.toml:2: pool.exclude.0:", "n[001-128]")
