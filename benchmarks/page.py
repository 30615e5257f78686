"""How quickly the page answers, with and without a server, in Chromium.

    python benchmarks/page.py --out docs/results/page.json

Needs playwright, chromium on PATH, and kernels compiled for browsers (`make test-web` and an install with clang provide
them). Measured are the time from the command to the first suggestion on the screen (of the short book; Python's modules
have been compiled, as in an installed package), from opening the page without a server, with nothing cached, to the
first suggestion, and from a keystroke to its suggestions (these of a model of the English that ships with Python). Run
it on a machine that is otherwise idle; if there is none, `chrt -r 1` gives it priority over other work.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from playwright.sync_api import BrowserContext, sync_playwright

from saffu import SaffuLM
from saffu.play.web_page import export_web
from saffu.text.default_corpus import default_corpus

TYPED = "Return the number of characters that were read from the file, or raise an error if it is closed."
RUNS = 5
WATCH = """
addEventListener("DOMContentLoaded", () => {
  let typed = 0;
  window.times = [];
  const words = document.getElementById("words");
  const drawn = () => (window.first ??= performance.now()); // since the page was asked for
  document.getElementById("editor").addEventListener("input", () => (typed = performance.now()));
  new MutationObserver(() => {
    if (!words.querySelector(".p")) return;
    requestAnimationFrame(() => setTimeout(drawn));
    if (typed) window.times.push(performance.now() - typed);
    typed = 0;
  }).observe(words, { childList: true });
});
"""


@contextmanager
def serving(*command: str) -> Iterator[str]:
    """The address that a command prints, while it runs."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with subprocess.Popen([sys.executable, "-u", "-m", *command], env=compiled, **pipes) as server:
        assert server.stdout
        try:
            found = re.search(r"http://[^\s)]+", server.stdout.readline())
            assert found, f"{command} printed no address"
            yield found[0]
        finally:
            server.terminate()


def opened(profile: BrowserContext, address: str, keys: str = "") -> tuple[float, list[float], float]:
    """Milliseconds from asking for a page to its first suggestion, and from each keystroke to its suggestions.

    Also when the first suggestion came, in seconds since the epoch.
    """
    with profile.new_page() as page:
        page.add_init_script(WATCH)
        page.goto(address)
        page.wait_for_function("() => window.first")
        if keys:
            page.fill("#editor", "")
            page.wait_for_timeout(500)
            page.evaluate("() => (window.times = [])")
        for number, key in enumerate(keys):
            page.keyboard.type(key)
            page.wait_for_function("(number) => window.times.length > number", arg=number)
        return page.evaluate("() => [window.first, window.times, (performance.timeOrigin + window.first) / 1000]")


def started(browser: Callable[[], AbstractContextManager[BrowserContext]]) -> float:
    """Seconds from the command to the first suggestion, in a new tab of a browser that runs, or is launched now."""
    begin = time.time()
    with serving("saffu", "play", "--no-browser") as address, browser() as profile:
        return opened(profile, address)[2] - begin


def median(seconds: Iterable[float]) -> float:
    return round(statistics.median(seconds), 2)


def spread(milliseconds: list[float]) -> dict[str, float]:
    return {
        "keystrokes": len(milliseconds),
        "median ms": round(statistics.median(milliseconds), 1),
        "95% below ms": round(statistics.quantiles(milliseconds, n=20)[-1], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    options = parser.parse_args()
    usual = not hasattr(os, "SCHED_RR") or os.sched_getscheduler(0) == os.SCHED_OTHER
    results: dict[str, Any] = {"load": round(os.getloadavg()[0], 1), "priority": "usual" if usual else "real-time"}
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as driver:
        model, page = Path(scratch) / "model", Path(scratch) / "page"
        lm = SaffuLM().fit(list(default_corpus()))
        lm.save(model)
        export_web(lm, page, "the English that ships with Python")
        sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []

        @contextmanager
        def new_browser() -> Iterator[BrowserContext]:
            with driver.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox) as browser:
                yield browser.new_context()

        served = {"first, with a new browser s": median(started(new_browser) for _ in range(RUNS))}
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        profile = browser.new_context()
        served["first s"] = median(started(lambda: nullcontext(profile)) for _ in range(RUNS))
        with serving("saffu", "play", str(model), "--no-browser") as address:
            keys = spread(opened(profile, address, TYPED)[1])
            results["saffu play"] = {**served, "tokens": lm.trained_on_["tokens"], **keys}
        with serving("http.server", "--bind", "127.0.0.1", "--directory", str(page), "0") as address:
            static = {"MB": round((page / "model.saffu").stat().st_size / 1e6, 1)}
            static["first s"] = median(opened(browser.new_context(), address)[0] / 1000 for _ in range(RUNS))
            results["without a server"] = {**static, **spread(opened(profile, address, TYPED)[1])}
        browser.close()
    print(json.dumps(results, indent=2))
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
