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
    "docs/adr/0006-listener-and-actuator.md": 140,
    "docs/adr/0008-wide-pilots.md": 145,
    "docs/adr/0009-a-node-is-one-member.md": 140,
    "docs/adr/0011-what-a-decision-touches.md": 115,
    "docs/adr/0013-limits-are-only-cut.md": 130,
    "docs/adr/0014-the-house.md": 145,
    "docs/adr/0015-nccl-beside-gloo.md": 135,
    "docs/adr/0016-members-compare-rows.md": 150,
    "docs/adr/0017-streams-and-loops-without-a-with.md": 150,
    "docs/adr/0019-no-leaving-ahead-of-a-cycle.md": 140,
    "docs/adr/0020-image-of-the-ledger.md": 155,
    "docs/adr/0021-harmless-cycles.md": 135,
    "docs/adr/0023-invariants-in-the-process.md": 155,
    "docs/architecture.md": 800,
    "docs/contributing.md": 845,
    "docs/explanation/comparison.md": 480,
    "docs/explanation/curves.md": 825,
    "docs/explanation/elastic.md": 1275,
    "docs/explanation/holes.md": 350,
    "docs/explanation/how-it-works.md": 935,
    "docs/explanation/policies.md": 975,
    "docs/explanation/promise.md": 745,
    "docs/explanation/replay-method.md": 865,
    "docs/explanation/sizing.md": 1020,
    "docs/faq.md": 305,
    "docs/figures.md": 3365,
    "docs/gallery.md": 400,
    "docs/glossary.md": 440,
    "docs/how-to/adapters.md": 600,
    "docs/how-to/admin-install.md": 1060,
    "docs/how-to/admin-lifecycle.md": 425,
    "docs/how-to/admin-network.md": 815,
    "docs/how-to/admin-operate.md": 1410,
    "docs/how-to/admin-rollout.md": 600,
    "docs/how-to/admin-slurm.md": 870,
    "docs/how-to/gpu.md": 720,
    "docs/how-to/independent-items.md": 335,
    "docs/how-to/replay-your-log.md": 470,
    "docs/how-to/researcher-data.md": 515,
    "docs/how-to/researcher-run.md": 530,
    "docs/how-to/researcher-script.md": 1105,
    "docs/how-to/researcher-submit.md": 595,
    "docs/how-to/study.md": 655,
    "docs/how-to/web-page.md": 500,
    "docs/quick-start/analyst.md": 175,
    "docs/quick-start/researcher.md": 275,
    "docs/quick-start/sysadmin.md": 300,
    "docs/quick-start/transcript-researcher.md": 140,
    "docs/quick-start/transcript-sysadmin.md": 405,
    "docs/reference/api.md": 1045,
    "docs/reference/commands.md": 2495,
    "docs/reference/config.md": 960,
    "docs/reference/habits.md": 1200,
    "docs/reference/loops.md": 815,
    "docs/reference/replay.md": 605,
    "docs/reference/session.md": 1545,
    "docs/reference/slurm.md": 1485,
    "docs/reference/sql.md": 500,
    "docs/reference/support.md": 300,
    "docs/reliability.md": 950,
    "docs/security.md": 1365,
    "docs/tutorial.md": 525,
}


def test_every_page_has_a_bound() -> None:
    assert BOUNDS.keys() == PAGES


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_page_is_within_its_bound(page: str) -> None:
    words = len((ROOT / page).read_text(encoding="utf-8").split())
    most = BOUNDS[page]
    assert words <= most, f"{page} has {words} words, {most} at most: say less, or put figures into docs/figures.md"


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
