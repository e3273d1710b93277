"""What was measured beside a replay makes a factor with its range, whatever the unit, and stands in the answer."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.errors import InvalidInput
from malletrain.replay.loop_engine import replay_through_loop
from malletrain.replay.scoring.journal_score import score_journal
from malletrain.replay.scoring.realism import of_journal, of_plays
from malletrain.replay.traces.trace import BUSY, IDLE
from malletrain.sizing.registry import policy
from malletrain.store.journal import SqliteJournal
from tests.replay.small import job, trace
from tests.replay.test_command import EVENTS, malletrain

pairs = st.lists(st.tuples(st.floats(1.0, 1e6), st.floats(0.2, 1.2)), min_size=1, max_size=8)


def table(rows: list[tuple[float, float]]) -> str:
    return "play,predicted,measured\n" + "".join(f"p,{predicted!r},{measured!r}\n" for predicted, measured in rows)


@given(pairs, st.floats(1e-3, 1e3))
def test_the_factor_lies_in_its_range_and_does_not_depend_on_the_unit(
    rows: list[tuple[float, float]], unit: float
) -> None:
    plain = of_plays(table([(predicted, predicted * part) for predicted, part in rows]), "plays.csv").factor(None)
    other = of_plays(table([(unit * p, unit * p * part) for p, part in rows]), "plays.csv").factor(0.5)
    assert plain is not None and other is not None
    assert plain.low * (1 - 1e-9) <= plain.factor <= plain.high * (1 + 1e-9)
    assert other.factor == pytest.approx(plain.factor) and plain.count == len(rows)
    expected, low, high = plain.of(100.0)
    assert low <= expected * (1 + 1e-9) and expected <= high * (1 + 1e-9)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("play,predicted\na,1\n", "lacks the columns measured"),
        ("", "lacks the columns play, predicted, measured"),
        ("play,predicted,measured\n", "has no play"),
        ("play,predicted,measured\na,1,x\n", "plays.csv:2: predicted and measured must be numbers"),
        ("play,predicted,measured\na,0,1\n", "both positive"),
        ("play,predicted,measured\na,1,nan\n", "both positive"),
        ("play,predicted,measured\na,1,3600\n", "in one unit"),
        ("play,predicted,measured\na,1\n", "must be numbers"),
    ],
)
def test_a_table_that_cannot_be_right_is_refused_by_line(text: str, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        of_plays(text, "plays.csv")
    assert said in str(caught.value)


def test_a_journal_is_cut_into_parts_that_make_up_the_whole() -> None:
    machine = trace([(0.0, 0, IDLE), (300.0, 1, IDLE), (9000.0, 1, BUSY), (15000.0, 1, IDLE)], 2, 6 * 3600.0)
    events = list(replay_through_loop(machine, [job()], policy("exact")))
    found, score = of_journal(events, "journal.db"), score_journal(events)
    assert score.share_of_ideal is not None
    assert found.whole == pytest.approx(score.share_of_ideal)
    assert 5 <= len(found.shares) <= 6
    same = found.factor(score.share_of_ideal)
    assert same is not None and same.factor == pytest.approx(1.0)
    assert min(found.shares) <= found.whole <= max(found.shares)
    assert found.factor(None) is None


def test_a_journal_without_training_is_refused() -> None:
    with pytest.raises(InvalidInput, match="shows no training"):
        of_journal([], "journal.db")


def test_the_command_tells_the_answer_as_calibrated(tmp_path: Path) -> None:
    log, plays, made = tmp_path / "events.csv", tmp_path / "plays.csv", tmp_path / "report"
    log.write_text("\n".join(EVENTS))
    plays.write_text("play,predicted,measured\nmonday,100,80\nfriday,50,45\n")
    asked = ("replay", str(log), "--mix", "imagenet:2", f"calibration={plays}")
    done = malletrain(*asked, "sensitivity=false", "--report", str(made), "--json", str(tmp_path / "answer.json"))
    assert done.returncode == 0, done.stderr
    assert "Calibrated: a real daemon trains 0.85 times what is replayed (plays.csv: 2 plays)" in done.stdout
    answer = json.loads((tmp_path / "answer.json").read_text())["calibration"]
    assert (answer["low"], answer["high"], answer["count"]) == (0.8, 0.9, 2)
    page = (made / "index.html").read_text()
    assert "Calibrated: a real daemon" in page and "the same as calibrated" in page
    facts = dict(csv.reader((made / "facts.csv").open()))
    assert float(facts["calibration: factor"]) == pytest.approx(answer["factor"])


def test_the_command_takes_a_daemons_journal(tmp_path: Path) -> None:
    log, store = tmp_path / "events.csv", tmp_path / "journal.db"
    log.write_text("\n".join(EVENTS))
    machine = trace([(0.0, 0, IDLE), (300.0, 1, IDLE), (900.0, 1, BUSY)], 2, 3600.0)
    with SqliteJournal(store) as journal:
        journal.append(list(replay_through_loop(machine, [job()], policy("exact"))))
    done = malletrain("replay", str(log), "--mix", "imagenet:2", f"calibration={store}")
    assert done.returncode == 0, done.stderr
    assert "journal.db: 1.0 hours of a daemon's journal)" in done.stdout
    done = malletrain("replay", str(log), f"calibration={tmp_path / 'none.csv'}")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
