"""The page in a real Chromium: signing in, what is shown, live changes, keyboard, contrast, hostile names."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from malletrain.domain.event import Event, JobAnnounced, JobFailed, JobHeld
from malletrain.domain.job import MalleableJob
from tests.browser import Browser, chromium, is_there
from tests.messages import says
from tests.web.invented_past import InventedMachine
from tests.web.page_server import PageServer

HOSTILE = (
    "<img src=x onerror=window.pwned=1>",
    "</script><script>window.pwned=1</script>",
    "javascript:window.pwned=1//",
    "\"'><svg/onload=window.pwned=1>",
    "{{constructor.constructor('window.pwned=1')()}}",
)

PAGES = ("#/", "#/jobs", "#/jobs/2", "#/promise")

DRAWN = "!document.querySelector('main[aria-busy]') && document.querySelector('h1')"

pytestmark = pytest.mark.skipif(not is_there(), reason="needs Debian's chromium and chromium-driver")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    machine = InventedMachine(12, 8, 3.0, time.time(), mean_main_s=1200.0, first_names=HOSTILE[:1])
    with PageServer(tmp_path_factory.mktemp("page") / "journal.db", machine) as made:
        jobs = [
            MalleableJob(900 + at, name, "mallory", 1002, name[:20], 1, 4, time.time())
            for at, name in enumerate(HOSTILE)
        ]
        made.journal.append([Event(time.time(), JobAnnounced(job), job.id) for job in jobs])
        made.journal.append([Event(time.time(), JobHeld(), job.id, reason=job.name) for job in jobs])
        yield made


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as made:
        yield made


@pytest.fixture
def browser(chrome: Browser, server: PageServer) -> Browser:
    """A browser that has signed in as ada, on the first page, at a desk, by day."""
    chrome.prefer("light")
    chrome.resize(1280, 900)
    chrome.open("about:blank")  # a link in the address of the same page would not load it anew
    chrome.open(server.link("ada"))
    chrome.await_that(DRAWN)
    chrome.complaints()
    return chrome


def go(browser: Browser, page: str) -> None:
    browser.run("location.hash = arguments[0]", page)
    browser.await_that(DRAWN)


def test_a_link_signs_in_once_and_leaves_no_trace(browser: Browser, server: PageServer) -> None:
    assert browser.run("return [location.hash, document.cookie]") == ["", ""], "neither link nor cookie is to be read"
    assert "ada" in browser.run("return document.getElementById('user').innerText")
    browser.open(f"{server.url}/web/")
    browser.await_that(DRAWN)
    assert "nodes" in browser.run("return document.querySelector('h1').innerText"), "it stays signed in"


def test_a_used_link_says_how_to_get_another(chrome: Browser, server: PageServer) -> None:
    link = server.link("ada")
    for _ in range(2):
        chrome.open("about:blank")
        chrome.open(link)
        chrome.await_that(DRAWN)
    told = chrome.run("return document.querySelector('main').innerText")
    assert "malletrain web" in told
    assert says(told, "run out")
    assert chrome.run("return location.hash") == ""


def test_a_new_link_in_the_same_tab_signs_in(browser: Browser, server: PageServer) -> None:
    token = server.link("bao").partition("#")[2]
    browser.run("location.hash = arguments[0]", token)
    browser.await_that("document.getElementById('user').innerText.includes('bao')")


def test_signing_out_takes_all_away(browser: Browser) -> None:
    browser.run("document.querySelector('#user button').click()")
    browser.await_that("document.querySelector('.signed-out')")
    assert browser.run("return localStorage.length") == 0
    browser.run("location.reload()")
    browser.await_that("document.querySelector('.signed-out')")


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 900)])
def test_every_page_fits_and_asks_nobody_else(
    browser: Browser, server: PageServer, page: str, width: int, height: int
) -> None:
    browser.resize(width, height)
    go(browser, page)
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
    asked = browser.run("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert asked
    assert [address for address in asked if not address.startswith(f"{server.url}/web/")] == []
    assert browser.complaints() == [], "neither an error nor anything that the policy refused"


def test_hostile_names_are_text(browser: Browser) -> None:
    for page in ("#/", "#/jobs", "#/jobs/1", *(f"#/jobs/{900 + at}" for at in range(len(HOSTILE)))):
        go(browser, page)
        assert browser.run("return window.pwned") is None
        assert browser.run("return document.querySelectorAll('main img, main script, main svg').length") == 0
    go(browser, "#/jobs")
    told = browser.run("return document.querySelector('main').textContent")
    assert [name for name in HOSTILE if name not in told] == []
    links = browser.run("return [...document.querySelectorAll('main a')].map(link => link.getAttribute('href'))")
    assert all(link.startswith("#/jobs/") for link in links)


def test_the_policy_would_stop_a_script_in_the_page(browser: Browser) -> None:
    browser.run(
        "const made = document.createElement('script'); made.textContent = 'window.pwned = 1';"
        "document.body.append(made);"
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.pwned = 2\">')"
    )
    assert browser.run("return window.pwned") is None
    assert any("Content Security Policy" in entry["message"] for entry in browser.complaints())


def test_changes_come_by_themselves(browser: Browser, server: PageServer) -> None:
    go(browser, "#/jobs")
    assert "burst into flames" not in browser.run("return document.querySelector('main').textContent")
    browser.await_that("document.getElementById('state').textContent === 'live'")
    server.journal.append([Event(time.time(), JobHeld(), 5, reason="burst into flames")])
    browser.await_that("document.querySelector('main').textContent.includes('burst into flames')", 60)


def test_the_focus_stays_where_it_was_when_figures_come(browser: Browser, server: PageServer) -> None:
    go(browser, "#/jobs")
    browser.run("document.querySelector('[data-key=\"find\"]').focus()")
    browser.press("t", "u", "r")
    browser.await_that("document.querySelectorAll('tbody tr').length < 5")
    assert browser.run("return document.activeElement.value") == "tur"
    server.journal.append([Event(time.time(), JobFailed(), 7, reason="the disk is full")])
    browser.await_that("document.getElementById('state').textContent === 'live'")
    assert browser.run("return document.activeElement.dataset.key") == "find"


def test_the_strip_is_read_by_keys(browser: Browser) -> None:
    browser.run("document.querySelector('.strip canvas').focus()")
    browser.press("\ue00f", "\ue012", "\ue012")  # down, left, left
    told = browser.run("return document.querySelector('.strip [role=status]').textContent")
    assert told.startswith("n00")
    assert any(word in told for word in ("main queue", "job ", "idle", "down"))
    for _ in range(60):
        if "job " in browser.run("return document.querySelector('.tip').textContent"):
            break
        browser.press("\ue012")
    browser.press("\ue007")  # enter
    browser.await_that("location.hash.startsWith('#/jobs/')")
    browser.await_that("document.activeElement.id === 'main'")


def test_everything_is_reached_by_tab(browser: Browser) -> None:
    go(browser, "#/jobs")
    browser.run("document.activeElement.blur(); scrollTo(0, 0)")
    seen = []
    for _ in range(16):
        browser.press("\ue004")
        seen.append(
            browser.run("return document.activeElement.textContent.trim() || document.activeElement.dataset.key")
        )
    # The focus begins behind the heading's main, so the list is looked through in any order.
    wanted = {"find", "mine", "Not over", "All"}
    assert wanted <= set(seen), seen


@pytest.mark.parametrize("page", PAGES)
def test_names_and_structure_for_screen_readers(browser: Browser, page: str) -> None:
    go(browser, page)
    nodes = browser.command("Accessibility.getFullAXTree")["nodes"]

    def role(node: dict[str, object]) -> str:
        found = node.get("role", {})
        return str(found.get("value")) if isinstance(found, dict) else ""

    shown = [node for node in nodes if not node.get("ignored")]
    nameless = [
        role(node)
        for node in shown
        if role(node)
        in ("button", "link", "checkbox", "searchbox", "image", "img", "table", "progressbar", "progressIndicator")
        and not node.get("name", {}).get("value", "").strip()
    ]
    assert nameless == []
    roles = [role(node) for node in shown]
    assert {"banner", "main", "navigation"} <= set(roles)
    levels = browser.run("return [...document.querySelectorAll('h1, h2, h3')].map(head => Number(head.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert browser.run("return document.documentElement.lang") == "en"
    assert browser.run("return document.querySelectorAll('nav a[aria-current=page]').length") == 1


CONTRAST = """
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => {
  const part = (value) => (value /= 255) <= .03928 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4;
  return .2126 * part(r) + .7152 * part(g) + .0722 * part(b);
};
const back = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const color = parse(getComputedStyle(at).backgroundColor);
    if (color.length === 3 || color[3] > 0) return color;
  }
  return [255, 255, 255];
};
const low = [];
for (const element of document.querySelectorAll('body *')) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  const box = element.getBoundingClientRect();
  if (!own || box.width < 2 || element.closest('.unseen, .tip[hidden], noscript, .u-legend')) continue;
  const style = getComputedStyle(element), one = light(parse(style.color)), other = light(back(element));
  const ratio = (Math.max(one, other) + .05) / (Math.min(one, other) + .05);
  const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
  const words = `${element.tagName}.${element.className} ${element.textContent.slice(0, 20)}`;
  if (ratio < (large ? 3 : 4.5)) low.push(`${words}: ${ratio.toFixed(2)}`);
}
return low;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out(browser: Browser, scheme: str) -> None:
    """WCAG 2.2, 1.4.3: 4.5 to 1, large texts 3 to 1."""
    browser.prefer(scheme)
    for page in PAGES:
        go(browser, page)
        assert browser.run(CONTRAST) == []


def test_a_plot_is_a_table_too(browser: Browser) -> None:
    go(browser, "#/jobs/2")
    browser.await_that("document.querySelector('.u-over')")
    browser.run("document.querySelector('figure details').open = true")
    browser.await_that("document.querySelectorAll('figure details tbody tr').length > 2")
    assert "train together" in browser.run("return document.querySelector('figure details').innerText")


WORDS = """
const done = arguments[arguments.length - 1];
import(new URL('words.js', location)).then((w) => done([
  [0, 7, 999, 1000, 1234, 45678, 1.5e6, 9.999e9].map(w.count),
  [0, 59.6, 185, 7800, 451000].map(w.duration),
  w.pause(null), w.pause(.123), w.rate(0), w.rate(1540), w.percent(.004), w.percent(.25),
  [1, 26, 27, 53].map(w.letter), [1, 8, 9].map(w.jobColor),
  w.nodes({nodes: 4, members: 3}), w.nodes({nodes: 2, members: 3}), w.nodes({nodes: 3, members: 3}),
  w.sizes({sizes: [], min_nodes: 1, max_nodes: 8}), w.sizes({sizes: [2, 4], min_nodes: 2, max_nodes: 4}),
  w.cellWords([[3, 1]], 1, new Map([[3, 'digits']])), w.cellWords([[3, 2], ['idle', 1]], 8, new Map()),
  w.cellWords([], 1, new Map()), w.dominant([[3, 2], ['idle', 4]], 8),
  w.runAt([[2, []], [3, [[3, 1]]]], 2), w.stacked([[1, 2], [3, 4]]),
  w.timeMarks(1000, 8000, 10).length, w.progress({samples: 500, total_samples: 2000}),
]));
"""


def test_words_of_figures(browser: Browser) -> None:
    found = browser.call("POST", "/execute/async", {"script": WORDS, "args": []})
    assert found == [
        ["0", "7", "999", "1.00k", "1.23k", "45.7k", "1.50M", "10.0G"],
        ["0 s", "1 min 00 s", "3 min 05 s", "2 h 10 min", "5 d 5 h"],
        "–", "0.12 s", "–", "1.54k/s", "0.4 %", "25 %",
        ["a", "z", "A", "a"], [1, 8, 1],
        "3 + 1", "3 − 1", "3",
        "1–8", "2, 4",
        "job 3 digits", "2 job 3, 1 idle, 5 main queue",
        "main queue", {"key": "idle", "share": 0.75},
        {"begin": 2, "end": 5, "cell": [[3, 1]]}, [[1, 2], [4, 6]],
        7, "500 of 2.00k (25 %)",
    ]  # fmt: skip
