"""A page stays within its bound of words, and a sentence of a how-to within 30."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = {str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]}

#: Words that a page may have (as wc -w counts them).
BOUNDS = {
    "README.md": 560,
    "docs/adr/0002-releases-without-chroot.md": 90,
    "docs/adr/0003-pilots-one-by-one.md": 90,
    "docs/adr/0004-two-locks.md": 105,
    "docs/adr/0005-batched-deeds.md": 90,
    "docs/adr/0006-listener-and-actuator.md": 125,
    "docs/adr/0008-wide-pilots.md": 145,
    "docs/adr/0009-a-node-is-one-member.md": 140,
    "docs/adr/0011-what-a-decision-touches.md": 120,
    "docs/adr/0013-limits-are-only-cut.md": 130,
    "docs/adr/0014-the-house.md": 140,
    "docs/adr/0015-nccl-beside-gloo.md": 135,
    "docs/adr/0016-members-compare-rows.md": 150,
    "docs/adr/0017-streams-and-loops-without-a-with.md": 150,
    "docs/adr/0019-no-leaving-ahead-of-a-cycle.md": 140,
    "docs/adr/0020-start-of-a-long-journal.md": 145,
    "docs/adr/0021-harmless-cycles.md": 135,
    "docs/adr/0023-invariants-in-the-process.md": 200,
    "docs/adr/0024-what-a-step-costs.md": 160,
    "docs/adr/0025-tests-pin-facts.md": 215,
    "docs/adr/0026-numbers-of-the-small-house.md": 250,
    "docs/adr/0027-munge-beside-auth-slurm.md": 120,
    "docs/architecture.md": 810,
    "docs/contributing.md": 810,
    "docs/explanation/comparison.md": 460,
    "docs/explanation/curves.md": 790,
    "docs/explanation/elastic.md": 1010,
    "docs/explanation/holes.md": 330,
    "docs/explanation/how-it-works.md": 900,
    "docs/explanation/policies.md": 835,
    "docs/explanation/promise.md": 705,
    "docs/explanation/replay-method.md": 775,
    "docs/explanation/sizing.md": 880,
    "docs/faq.md": 300,
    "docs/figures.md": 2600,
    "docs/gallery.md": 355,
    "docs/glossary.md": 205,
    "docs/how-to/adapters.md": 580,
    "docs/how-to/admin-install.md": 1055,
    "docs/how-to/admin-lifecycle.md": 420,
    "docs/how-to/admin-network.md": 810,
    "docs/how-to/admin-operate.md": 1395,
    "docs/how-to/admin-rollout.md": 575,
    "docs/how-to/admin-slurm.md": 850,
    "docs/how-to/gpu.md": 665,
    "docs/how-to/independent-items.md": 335,
    "docs/how-to/replay-your-log.md": 465,
    "docs/how-to/researcher-data.md": 515,
    "docs/how-to/researcher-run.md": 530,
    "docs/how-to/researcher-script.md": 1045,
    "docs/how-to/researcher-submit.md": 620,
    "docs/how-to/study.md": 645,
    "docs/how-to/web-page.md": 495,
    "docs/quick-start/analyst.md": 175,
    "docs/quick-start/researcher.md": 275,
    "docs/quick-start/sysadmin.md": 300,
    "docs/quick-start/transcript-researcher.md": 105,
    "docs/quick-start/transcript-sysadmin.md": 305,
    "docs/reference/api.md": 985,
    "docs/reference/commands.md": 2370,
    "docs/reference/config.md": 955,
    "docs/reference/habits.md": 1200,
    "docs/reference/loops.md": 770,
    "docs/reference/replay.md": 570,
    "docs/reference/session.md": 1480,
    "docs/reference/sites.md": 960,
    "docs/reference/slurm.md": 1375,
    "docs/reference/sql.md": 480,
    "docs/reference/support.md": 300,
    "docs/reliability.md": 780,
    "docs/security.md": 1215,
    "docs/tutorial.md": 525,
}

#: Words of all documents.
MOST_IN_ALL = 40_000


def test_every_page_has_a_bound() -> None:
    assert BOUNDS.keys() == PAGES


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_page_is_within_its_bound(page: str) -> None:
    words = len((ROOT / page).read_text(encoding="utf-8").split())
    most = BOUNDS[page]
    assert words <= most, f"{page} has {words} words, {most} at most: say less, or put figures into docs/figures.md"


def test_all_documents_together_are_short_enough_to_be_read() -> None:
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert sum(len(path.read_text(encoding="utf-8").split()) for path in documents) <= MOST_IN_ALL


def test_the_researchers_page_has_eight_special_cases() -> None:
    page = (ROOT / "docs" / "how-to" / "researcher-script.md").read_text(encoding="utf-8")
    table = page.split("| You use | Write |\n|---|---|\n")[1].split("\n\n")[0]
    assert len(table.splitlines()) <= 8, "rarer ones stand in docs/reference/loops.md"


#: Pages that say what to do.
HOW_TO = sorted(page for page in PAGES if page.startswith(("docs/how-to/", "docs/quick-start/", "docs/tutorial")))
MOST_IN_A_SENTENCE = 30


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page: of paragraphs, list items and cells of tables, without code and addresses of links."""
    prose = re.sub(r"^( *)```.*?^ *```$|^(?: {4,}|\t)\S.*$", "\n", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"`[^`]+`", "code", re.sub(r"\]\([^)]*\)", "]", prose))
    for part in re.split(r"\n\s*(?:[-*]|\d+\.) |\n#+ |\n\s*\n|\|", prose):
        yield from re.split(r"(?<=[.!?])[)\"*]*\s+", " ".join(part.split()))


@pytest.mark.parametrize("page", HOW_TO)
def test_no_sentence_of_a_how_to_is_long(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    long = [each for each in sentences(text) if len(each.split()) > MOST_IN_A_SENTENCE]
    assert not long, f"{page}: make two sentences of each"


def test_a_sentence_is_counted_across_lines_and_by_list_item() -> None:
    text = "One two\nthree. Four `a b c` [five](x.md).\n\n- six\n- seven\n\n| eight | nine |\n```\nten.\n```\n"
    assert [each for each in sentences(text) if each] == [
        "One two three.",
        "Four code [five].",
        "six",
        "seven",
        "eight",
        "nine",
    ]
