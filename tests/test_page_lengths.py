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
    "README.md": 555,
    "docs/adr/0002-releases-without-chroot.md": 90,
    "docs/adr/0003-pilots-one-by-one.md": 85,
    "docs/adr/0004-two-locks.md": 100,
    "docs/adr/0005-batched-deeds.md": 85,
    "docs/adr/0006-listener-and-actuator.md": 120,
    "docs/adr/0008-wide-pilots.md": 140,
    "docs/adr/0009-a-node-is-one-member.md": 135,
    "docs/adr/0011-what-a-decision-touches.md": 115,
    "docs/adr/0013-limits-are-only-cut.md": 125,
    "docs/adr/0014-the-house.md": 135,
    "docs/adr/0015-nccl-beside-gloo.md": 130,
    "docs/adr/0016-members-compare-rows.md": 140,
    "docs/adr/0017-streams-and-loops-without-a-with.md": 145,
    "docs/adr/0019-no-leaving-ahead-of-a-cycle.md": 140,
    "docs/adr/0020-image-of-the-ledger.md": 135,
    "docs/adr/0021-harmless-cycles.md": 130,
    "docs/adr/0023-invariants-in-the-process.md": 145,
    "docs/architecture.md": 780,
    "docs/contributing.md": 780,
    "docs/explanation/comparison.md": 455,
    "docs/explanation/curves.md": 785,
    "docs/explanation/elastic.md": 1050,
    "docs/explanation/holes.md": 325,
    "docs/explanation/how-it-works.md": 890,
    "docs/explanation/policies.md": 825,
    "docs/explanation/promise.md": 700,
    "docs/explanation/replay-method.md": 770,
    "docs/explanation/sizing.md": 875,
    "docs/faq.md": 290,
    "docs/figures.md": 2475,
    "docs/gallery.md": 350,
    "docs/glossary.md": 195,
    "docs/how-to/adapters.md": 570,
    "docs/how-to/admin-install.md": 1045,
    "docs/how-to/admin-lifecycle.md": 415,
    "docs/how-to/admin-network.md": 800,
    "docs/how-to/admin-operate.md": 1385,
    "docs/how-to/admin-rollout.md": 570,
    "docs/how-to/admin-slurm.md": 845,
    "docs/how-to/gpu.md": 655,
    "docs/how-to/independent-items.md": 335,
    "docs/how-to/replay-your-log.md": 460,
    "docs/how-to/researcher-data.md": 510,
    "docs/how-to/researcher-run.md": 520,
    "docs/how-to/researcher-script.md": 1035,
    "docs/how-to/researcher-submit.md": 590,
    "docs/how-to/study.md": 640,
    "docs/how-to/web-page.md": 485,
    "docs/quick-start/analyst.md": 170,
    "docs/quick-start/researcher.md": 275,
    "docs/quick-start/sysadmin.md": 300,
    "docs/quick-start/transcript-researcher.md": 95,
    "docs/quick-start/transcript-sysadmin.md": 295,
    "docs/reference/api.md": 975,
    "docs/reference/commands.md": 2365,
    "docs/reference/config.md": 950,
    "docs/reference/habits.md": 1190,
    "docs/reference/loops.md": 765,
    "docs/reference/replay.md": 565,
    "docs/reference/session.md": 1470,
    "docs/reference/slurm.md": 1365,
    "docs/reference/sql.md": 470,
    "docs/reference/support.md": 295,
    "docs/reliability.md": 855,
    "docs/security.md": 1205,
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
