"""Node lists: opened here to the names that Slurm's own `scontrol show hostnames` gives."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from malletrain.domain.errors import InvalidInput
from malletrain.slurm.formats import hostlist
from scripts.lab.packages import Toolchain

END = "end-of-list"


def slurms(toolchain: Toolchain, conf: Path, lists: list[str]) -> list[list[str]]:
    """What Slurm opens each list to; [] where it refuses it. One process answers all."""
    plugins = f"PluginDir={toolchain.plugin_directory}\n" if toolchain.plugin_directory else ""
    conf.write_text(f"ClusterName=x\nSlurmctldHost=localhost\n{plugins}")
    asked = "".join(f"show hostnames {text}\nshow hostnames {END}\n" for text in lists)
    done = subprocess.run(
        [toolchain.program("scontrol")], input=asked, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "SLURM_CONF": str(conf), "COLUMNS": "100000"},  # readline folds its echo
    )  # fmt: skip
    answers: list[list[str]] = [[]]
    for line in done.stdout.splitlines():
        if line == END:
            answers.append([])
        elif line and not line.startswith("scontrol:"):  # its prompt
            answers[-1].append(line)
    assert len(answers) == len(lists) + 1, done.stderr[-500:]
    return answers[:-1]


numbers = st.builds(lambda number, width: str(number).zfill(width), st.integers(0, 130), st.integers(1, 4))
ranges = st.one_of(
    numbers,
    st.builds(
        lambda low, more, width, other: f"{str(low).zfill(width)}-{str(low + more).zfill(other)}",
        st.integers(0, 120), st.integers(0, 120), st.integers(1, 4), st.integers(1, 4),
    ),
)  # fmt: skip
brackets = st.lists(ranges, min_size=1, max_size=4).map(lambda parts: f"[{','.join(parts)}]")
words = st.from_regex(r"[a-zA-Z][a-zA-Z0-9]{0,4}([-_.][a-z0-9]{1,3})?", fullmatch=True)
dimensions = st.one_of(
    st.builds("{}{}".format, words, brackets),
    st.builds("{}{}{}{}".format, words, brackets, st.sampled_from(["", "x", "c", "-n"]), brackets),
    st.builds("{}[{}]c[{},{}]n[{},{}]{}".format, words, *[numbers] * 5, st.sampled_from(["", "[1-2]"])),
    brackets,
)
node_lists = st.lists(st.one_of(words, dimensions), min_size=1, max_size=4).map(",".join)
#: Of a list's own characters, but perhaps no list. (Slurm takes half a bracket for a part of a name.)
scrambled = st.from_regex(r"n[0-9,\-]{0,3}(\[[0-9,\-]{0,6}\][0-9,]{0,2}){0,2}", fullmatch=True)

OF_SITES = [
    "n[01-120]", "n[001-003,1-3]", "n[1-3,01-03]", "n[001-5]", "n[08-11]", "n[1,1]", "n1,n1", "n[1-]", "a,,b", ",a",
    "rack[1-2]node[08-11]", "[1-2][3-4]", "r[01-02]c[1-2]n[08-11]", "n[1-2][3-4][5-6]",
    "bigmem-1,c1-[5,9,12-18],gpu-[1,5-6]", "n[0-65535]", "n[0-65536]",
    "n[000000000000000000000000000000001-3]", "a[1-2]-ib0", "n[3-1]", "n[]", "n[1--2]", "n[a-c]", "n[1:2]", "n[1x2]",
]  # fmt: skip


@pytest.mark.slurm
def test_lists_of_sites_open_to_the_names_that_slurm_gives(toolchain: Toolchain, tmp_path: Path) -> None:
    for text, names in zip(OF_SITES, slurms(toolchain, tmp_path / "slurm.conf", OF_SITES), strict=True):
        if names:
            assert hostlist.opened(text) == tuple(dict.fromkeys(names)), text


@pytest.mark.slurm
@settings(
    max_examples=8, deadline=None, phases=[Phase.generate],  # each try is a process: no shrinking
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(st.lists(node_lists, min_size=20, max_size=60), st.lists(scrambled, min_size=20, max_size=60))
def test_every_list_that_slurm_opens_opens_here_to_the_same_names(
    toolchain: Toolchain, tmp_path: Path, lists: list[str], others: list[str]
) -> None:
    answers = slurms(toolchain, tmp_path / "slurm.conf", [*lists, *others])
    for text, names in zip([*lists, *others], answers, strict=True):
        assert names or text in others, f"the strategy makes lists, and {text} is none"
        if names:
            assert hostlist.opened(text) == tuple(dict.fromkeys(names)), text


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[098-101]", ("n098", "n099", "n100", "n101")),
        ("n[98-101]", ("n98", "n99", "n100", "n101")),
        ("n[08-10,7,07]", ("n08", "n09", "n10", "n7", "n07")),
        ("m[2,1],a", ("m2", "m1", "a")),
        ("r[1-2]n[9-10]", ("r1n9", "r1n10", "r2n9", "r2n10")),
        ("r[1-2]-ib0", ("r1-ib0", "r2-ib0")),
        ("r[1-2]c[3-4]n[5,6]", ("r1c3n5", "r1c3n6", "r2c3n5", "r2c3n6", "r1c4n5", "r1c4n6", "r2c4n5", "r2c4n6")),
        ("n[1,1],n1", ("n1",)),
        ("(null)", ()),
        ("", ()),
    ],
)
def test_names_in_the_order_that_they_are_written_in_each_once(text: str, names: tuple[str, ...]) -> None:
    assert hostlist.opened(text) == names


def test_a_number_that_outgrew_its_zeros_keeps_them_where_it_is_short() -> None:
    names = hostlist.opened("n[01-120]")
    assert (len(names), names[0], names[98], names[99], names[-1]) == (120, "n01", "n99", "n100", "n120")
    assert hostlist.size("n[01-120]") == 120


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 4)), min_size=1, max_size=30))
def test_single_names_open_to_themselves(numbers: list[tuple[int, int]]) -> None:
    names = [f"n{number:0{width}d}" for number, width in numbers]
    assert hostlist.opened(",".join(names)) == tuple(dict.fromkeys(names))


@given(st.text("n0129[]-,x", max_size=20))
def test_size_is_at_least_what_a_list_opens_to(text: str) -> None:
    try:
        names = hostlist.opened(text)
    except InvalidInput:
        return
    assert len(names) == len(set(names))
    assert len(names) <= hostlist.size(text) or text.strip() in hostlist.EMPTY


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("n[0-99999999]", "more than 200000 nodes"),
        ("n[1-9][1-99999][1-99999]", "more than 200000 nodes"),
        ("n[0-" + "9" * 60 + "]", "more than 200000 nodes"),
        ("n[0-" + "9" * 6000 + "]", "malformed range"),
        ("a" * 300 + "[1-9]", "longer than 253"),
        ("a[1]" + "[0001]" * 100, "longer than 253"),
        ("n[5-1]", "backwards"),
        ("n[1", "brackets"),
        ("n]1[", "brackets"),
        ("n[[1-2]]", "brackets"),
        ("n[]", "malformed range"),
        ("n[a-b]", "malformed range"),
        ("n[0a-10]", "malformed range"),
        ("n[-5]", "malformed range"),
        ("@all", "node list"),
        ("n1!n2", "node list"),
        ("n[1-2]/3", "node list"),
        ("n;m", "node list"),
        ("Loading the modules", "node list"),
    ],
)
def test_what_is_no_list_or_too_long_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why) as refused:
        hostlist.opened(text, "pool.include")
    assert str(refused.value).startswith("pool.include: ")
    assert len(str(refused.value)) < 200


def test_lists_that_people_write_name_at_least_one_node() -> None:
    assert hostlist.node_names(["n[09-10]", "m1, m2 m3"], "pool.include") == {"n09", "n10", "m1", "m2", "m3"}
    assert hostlist.node_names([], "pool.include") == frozenset()
    for empty in ("", " ", ",", "(null)", "None"):
        with pytest.raises(InvalidInput, match="no node"):
            hostlist.node_names(["n1", empty], "pool.include")


node_names = st.one_of(
    words,
    st.builds("{}{}".format, words, numbers),
    st.builds("{}{}n{}".format, words, numbers, numbers),
    st.builds("{}{}-ib0".format, words, numbers),
    st.integers(10**16, 10**18).map("n{}".format),
)


@given(st.lists(node_names, max_size=60))
def test_what_is_folded_opens_to_the_same_names(names: list[str]) -> None:
    assert sorted(hostlist.opened(hostlist.folded(names))) == sorted(set(names))


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), ""),
        (("n7",), "n7"),
        (("n3", "n1", "n2", "n2"), "n[1-3]"),
        (("n9", "n10", "n09"), "n[9,09-10]"),
        (("r1n1", "r1n2", "r2n1", "login"), "login,r1n[1-2],r2n1"),
        (("a1-ib", "a2-ib"), "a1-ib,a2-ib"),
    ],
)
def test_names_are_folded_by_their_last_number(names: tuple[str, ...], text: str) -> None:
    assert hostlist.folded(names) == text


@pytest.mark.slurm
@settings(
    max_examples=4, deadline=None, phases=[Phase.generate],  # each try is a process: no shrinking
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(st.lists(st.lists(node_names, min_size=1, max_size=40), min_size=20, max_size=60))
def test_slurm_opens_what_is_folded_to_the_same_names(
    toolchain: Toolchain, tmp_path: Path, lists: list[list[str]]
) -> None:
    answers = slurms(toolchain, tmp_path / "slurm.conf", [hostlist.folded(names) for names in lists])
    assert [sorted(set(opened)) for opened in answers] == [sorted(set(names)) for names in lists]
