"""Open a page in a real headless browser, inspect it with a script, and print it."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium or Chrome is installed")

TOOLS = """
  const all = (selector) => [...document.querySelectorAll(selector)];
  const texts = (elements) => [...elements].map((e) => e.textContent.trim());
  const shown = (elements) => [...elements].filter((e) => e.offsetWidth);
  const edge = document.documentElement.clientWidth + 1;
  const inside = (e) => e.closest(".scroll, pre, .thumb") && !e.matches(".scroll, pre, .thumb"); // moves or is cut
  const wide = all("body *").filter((e) => e.getBoundingClientRect().right > edge && !inside(e));
  const report = { wide: wide.map((e) => e.id || e.className || e.tagName) };
  const matrix = document.querySelector("[id^=table-accuracy-smoke] table");
  const groups = () => texts(shown(matrix.querySelectorAll("th.group")));
  const pressed = () => texts(all(".switches button[aria-pressed=true]"));
"""

#: Sorts a table in both directions; selects k = 4 with the keyboard focus on the button, and all k again; saves both.
LOOK = """
  for (const details of all("details")) details.open = true;
  const sorted = document.querySelector("#table-table3 table");
  const column = () => [...sorted.tBodies[0].rows].map((row) => row.cells[5].textContent.trim());
  const head = sorted.tHead.rows[1].cells[5].querySelector("button");
  report.before = column();
  head.click();
  report.rising = column();
  head.click();
  report.falling = column();
  const button = (value) => document.querySelector(`[aria-label="Show only one k"] button[value="${value}"]`);
  report.all = groups();
  button("4").focus();
  document.activeElement.click();
  report.four = groups();
  report.cells = shown(matrix.tBodies[0].rows[1].cells).length;
  report.linked = location.search;
  report.pressed = pressed();
  button("").click();
  report.again = groups();
  report.cleared = location.search;
  report.csv = csvOf(matrix);
  report.svg = new XMLSerializer().serializeToString(document.querySelector("figure svg"));
  report.drawings = all("svg[role=img]").length;
  const fetched = performance.getEntriesByType("resource").map((e) => e.name);
  report.fetched = fetched.filter((name) => !name.startsWith("data:"));
"""

#: Describes a narrow page that was opened by a link with a selection.
PHONE = """
  for (const details of all("details")) details.open = true;
  report.width = innerWidth;
  report.screen = document.documentElement.clientWidth; // less than the width by a bar to scroll with
  report.page = document.documentElement.scrollWidth;
  report.groups = groups();
  report.pressed = pressed();
  report.scales = [...new Set(shown(all("[data-scale]")).map((e) => e.dataset.scale))];
  report.said = texts(all("[id^=table-table1] .nothing-k"));
"""


#: Counts folded elements without height. Lists of records, patches and commands are not printed, and not counted.
FOLDED = """
  const never = "#benchmarks, #provenance, .commands";
  const folded = all("details:not([open]) p").filter((e) => !e.closest(never));
  report.hidden = folded.filter((e) => e.textContent && !e.getBoundingClientRect().height).length;
"""


def with_script(page: Path, file: Path, script: str) -> Path:
    """Add a script to the page that reports its findings in the title, and to the frame around the page."""
    tell = "document.title = JSON.stringify(report); parent.postMessage(document.title, '*');"
    # The page allows only its script, by hash; here it contains another one.
    text = re.sub(r"script-src 'sha256-[^']*'", "script-src 'unsafe-inline'", page.read_text(), count=1)
    file.write_text(text.replace("</body>", f"<script>{{ {TOOLS} {script} {tell} }}</script></body>"))
    return file


def browse(folder: Path, url: str, *options: str) -> str:
    """Return the output of the browser for the page. The console of the page must be empty."""
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    command += [f"--user-data-dir={folder / 'profile'}", "--enable-logging=stderr", "--v=0", *options, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    return done.stdout


def browse_in_frame(folder: Path, address: str, width: int) -> dict[str, Any]:
    """Return the report of the script in a page inside a frame. Chromium has no windows below 500 pixels."""
    outer = folder / "outer.html"
    listen = "<script>onmessage = (message) => { document.title = message.data; };</script>"
    frame = f'<iframe src="{html.escape(address)}" width="{width}" height="844" style="border: 0"></iframe>'
    outer.write_text(f"<!DOCTYPE html><title>outer</title>{listen}{frame}")
    return reported(browse(folder, outer.as_uri(), "--virtual-time-budget=20000", "--dump-dom"))


def reported(document: str) -> dict[str, Any]:
    """Return the report of the script."""
    seen = re.search(r"<title>(\{.*?\})</title>", document)
    assert seen is not None
    report: dict[str, Any] = json.loads(html.unescape(seen[1]))
    return report
