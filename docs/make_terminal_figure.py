"""Draw README's moving picture, docs/figures/terminal.svg: commands and what they print, from docs/results.

    python docs/make_terminal_figure.py

It is text in an SVG whose lines appear one after another (CSS animation), so it is small, sharp, and needs no player.
"""

from html import escape
from pathlib import Path

HERE = Path(__file__).parent
SHOWN = {  # of each transcript: the first lines of each command's output that fit on the screen
    "demo.txt": 7,
    "demo-explain.txt": 9,
}
COLUMNS, LINE, LETTER = 102, 19, 8.05  # pixels per line and letter
READING, TYPING, END = 0.12, 1.2, 5.0  # seconds per line of output, per command, and at the end
STYLE = """text { font: 13.4px ui-monospace, Menlo, Consolas, monospace; fill: #d8dee9; white-space: pre; }
.command { fill: #a3e4a1; } .screen { fill: #20242c; }"""


def screens() -> list[list[str]]:
    """What is shown at a time: a command and its output, cut to the size of the picture."""
    found = []
    for name, rows in SHOWN.items():
        text = (HERE / "results" / name).read_text("utf-8")
        for part in text.split("$ saffu ")[1:]:
            command, *output = part.rstrip("\n").split("\n")
            shown = [line[: COLUMNS - 1] for line in output if line.strip()][:rows]
            found.append([f"$ saffu {command}", *shown, *(["…"] if len(output) > rows else [])])
    return found


def drawing(parts: list[list[str]]) -> str:
    """All commands one below the other; each line appears at its time and stays until the picture starts again."""
    times, now = [], -TYPING  # the first command is there from the start
    for part in parts:
        for line in part:
            now += TYPING if line.startswith("$") else READING
            times.append(now)
        now += 1.2
    whole = now + END
    lines = [line for part in parts for line in part]
    height = LINE * (len(lines) + 1) + 8
    rules, texts = [], []
    for number, (line, time) in enumerate(zip(lines, times, strict=True)):
        share = max(100 * time / whole, 0.01)
        rules.append(
            f"@keyframes l{number} {{ 0%, {share - 0.01:.2f}% {{ opacity: 0 }} {share:.2f}%, 100% {{ opacity: 1 }} }}"
        )
        kind = ' class="command"' if line.startswith("$") else ""
        place = f'x="14" y="{LINE * (number + 1) + 6}" style="animation: l{number} {whole:.1f}s infinite"'
        texts.append(f"<text{kind} {place}>{escape(line)}</text>")
    size = f'width="{COLUMNS * LETTER + 28:.0f}" height="{height}"'
    still = "@media (prefers-reduced-motion: reduce) { text { animation: none !important; } }"
    style = "\n".join([STYLE, *rules, still])
    box = f'<rect class="screen" {size} rx="8"/>'
    body = "\n".join([f"<style>{style}</style>", box, *texts])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="saffu in a terminal">\n{body}\n</svg>\n'
    )


if __name__ == "__main__":
    (HERE / "figures" / "terminal.svg").write_text(drawing(screens()), "utf-8")
