"""Reports in a real browser: nothing sticks out, everything can be read.

Screenshots differ with every font, so the browser measures: what can be seen, at which
width, in which colors. ``test_report.py`` checks the contents without a browser.
"""

import html
import json
import re
import shutil
import subprocess

import pytest

from botorch_dp import ApproxDP, Certificate, Ledger, PureDP
from botorch_dp.privacy import AuditResult, Declaration, GaussianEvent, PureEvent

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
    *("--no-first-run", "--disable-background-networking", "--disable-sync"),
    *("--disable-component-update", "--hide-scrollbars", "--dump-dom"),
)
DARK = "--blink-settings=preferredColorScheme=0"
WIDTHS = (1280, 390)  # a desktop and a phone
# The frames have the origin of the page around them, whose script may measure them.
MEASURE = """
function numbers(color) { return color.match(/[\\d.]+/g).map(Number); }
function light(color) {
  const [r, g, b] = numbers(color).slice(0, 3).map(
    v => v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function paper(element, view) {
  for (let e = element; e; e = e.parentElement) {
    const color = view.getComputedStyle(e).backgroundColor;
    if (numbers(color).length < 4 || numbers(color)[3] > 0) return color;
  }
  return "rgb(255, 255, 255)";
}
function measure(frame) {
  const view = frame.contentWindow, page = frame.contentDocument;
  const width = frame.clientWidth, out = [], faint = [];
  for (const e of page.body.querySelectorAll("*")) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
    const box = e.getBoundingClientRect(), style = view.getComputedStyle(e);
    if (!own || e.tagName === "STYLE" || box.width === 0) continue;
    if (box.right > width + 1 && !e.closest(".wide")) out.push(e.textContent);
    const color = e.closest("svg") ? style.fill : style.color;
    const [a, b] = [light(color), light(paper(e, view))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) faint.push(e.textContent + " " + contrast.toFixed(2));
  }
  const table = page.querySelector(".wide .charges");
  return {
    name: frame.name, width, scrolls: page.documentElement.scrollWidth, out, faint,
    text: page.body.innerText, paper: paper(page.body, view),
    releases: table ? table.querySelectorAll("tbody tr").length : 0,
  };
}
addEventListener("load", () => {
  const found = [...document.querySelectorAll("iframe")].map(measure);
  document.getElementById("found").textContent = JSON.stringify(found);
});
"""


def ledger_with_parts():
    ledger = Ledger(cap=ApproxDP(3.0, 1e-6))
    for _ in range(3):
        ledger.charge(GaussianEvent(12.0), mechanism="a gradient with a long name")
    ledger.partition("north").charge(GaussianEvent(6.0), mechanism="of a partition")
    ledger.budget("research", ApproxDP(2.0, 1e-6)).charge(GaussianEvent(9.0))
    return ledger


def make_pages():
    """Return a name, a page and texts that must be seen on it."""
    ledger = ledger_with_parts()
    certificate = Certificate.from_ledger(
        ledger,
        parameters={"num_records": 5000, "clip_norm": 1.0},
        declaration=Declaration(data_set="Visits", contact="x" * 60),
    ).with_audit(AuditResult(0.2, "mu", 0.99, 20_000))
    north = Certificate.from_ledger(ledger.partition("north"))
    bad = Ledger(cap=PureDP(90.0))
    bad.charge(PureEvent(30.0))
    weak = Certificate.from_ledger(bad)
    return {
        "report": (
            certificate.to_html(ledger),
            [
                *certificate.sentences,
                *("agrees with the ledger", "Budget over time", certificate.digest),
                *("of a partition", "north", "research", "x" * 60, "cap 3"),
            ],
            5,
        ),
        "partition": (
            north.to_html(ledger),
            [*north.sentences, "the partitions are disjoint", "of a partition"],
            5,
        ),
        "weak": (weak.to_html(bad), [*weak.sentences, "little: epsilon 30"], 1),
        "ledger": (ledger.to_html(), ["Privacy ledger", "research: ApproxDP"], 5),
        "card": (certificate._repr_html_(), list(certificate.sentences), 0),
    }


@pytest.fixture(scope="module")
def expected():
    return make_pages()


def browse(folder, pages, *options):
    """Return what the browser measures of each page at each width."""
    frames = "".join(
        f"<iframe name='{name}' style='width:{width}px;height:900px;border:0' "
        f'srcdoc="{html.escape(page, quote=True)}"></iframe>'
        for width in WIDTHS
        for name, page in pages.items()
    )
    path = folder / "frames.html"
    path.write_text(
        "<!DOCTYPE html><meta charset='utf-8'><pre id='found'></pre>"
        f"{frames}<script>{MEASURE}</script>",
        encoding="utf-8",
    )
    done = subprocess.run(
        [
            *(BROWSER, *OPTIONS, *options),
            *(f"--user-data-dir={folder / 'profile'}", path.as_uri()),
        ],
        capture_output=True,
        check=False,
        timeout=300,
    )
    found = re.search(r"<pre id=.found.>(.*?)</pre>", done.stdout.decode(), re.DOTALL)
    assert found, done.stderr.decode()[-2000:]
    return json.loads(html.unescape(found[1]))


@pytest.mark.skipif(BROWSER is None, reason=f"there is no browser: {', '.join(NAMES)}")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_at_desktop_and_phone_width(tmp_path, expected, theme):
    pages = {name: page for name, (page, _, _) in expected.items()}
    measured = browse(tmp_path, pages, *([DARK] if theme == "dark" else []))
    assert len(measured) == len(WIDTHS) * len(pages)
    for found in measured:
        place = f"{found['name']} at {found['width']} pixels, {theme}"
        _, texts, releases = expected[found["name"]]
        assert found["width"] in WIDTHS
        assert found["scrolls"] <= found["width"], place
        assert found["out"] == [], place
        assert found["faint"] == [], place
        seen = " ".join(found["text"].split())
        for text in texts:
            assert text in seen, place
        assert found["releases"] == releases, place
        if found["name"] != "card":  # whose page belongs to the program around it
            assert (found["paper"] == "rgb(255, 255, 255)") == (theme == "light")


def test_the_pages_are_those_that_the_parser_checks(expected):
    """Also where there is no browser: the same sentences and rows are in the pages."""
    for page, texts, releases in expected.values():
        plain = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())
        for text in texts:
            assert text in plain
        rows = re.search(r"<tbody>(.*)</tbody>", page)
        assert (rows[1].count("<tr>") if rows else 0) == releases
