"""Take the picture of `saffu play` for the README, with the short book: python docs/make_play_figure.py

Needs playwright, pillow, and chromium on PATH (`make test-web` installs the first and the last). Times are left out of
the picture: they depend on what else the machine does.
"""

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

PICTURE = Path(__file__).parent / "figures" / "play.png"
WIDTH, SCALE, COLORS, TIMEOUT = 1280, 1.5, 128, 300_000
HIDE_TIMES = """() => {
    document.getElementById("latency").textContent = "";
    const line = document.getElementById("facts-line");
    line.textContent = line.textContent.replace(/, counted in .*/, "");
}"""


def prepare(page: Page) -> None:
    """Forget the document behind a suggestion of the short book that the page opens with."""
    page.wait_for_selector('#why-title:has-text("Why “came”?")')
    page.wait_for_selector("#documents li p")
    page.click("#documents li:first-child button")
    page.wait_for_selector("#changes li.equal")
    page.wait_for_selector("#changes .moves li")
    page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
    page.mouse.move(1, 1)
    page.wait_for_timeout(1000)  # until bars have moved
    page.evaluate(HIDE_TIMES)


def main() -> None:
    command = [sys.executable, "-m", "saffu", "play", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as driver:
        assert server.stdout
        address = re.search(r"http://\S+", server.stdout.readline())
        assert address
        sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=sandbox)
        page = browser.new_page(viewport={"width": WIDTH, "height": 1000}, device_scale_factor=SCALE)
        page.set_default_timeout(TIMEOUT)
        page.goto(address[0])
        prepare(page)
        box = page.locator("#documents li:nth-child(2)").bounding_box()
        assert box
        clip = {"x": 0, "y": 0, "width": WIDTH, "height": box["y"] + box["height"] + 14}
        image = Image.open(io.BytesIO(page.screenshot(full_page=True, clip=clip))).convert("RGB")
        browser.close()
        server.terminate()
    image.quantize(COLORS, dither=Image.Dither.NONE).save(PICTURE, optimize=True)
    print(f"{PICTURE}: {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
