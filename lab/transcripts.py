"""What the commands on the pages print, run with the demo's model: docs/results/demo*.txt.

The demo's text comes with Python, so its numbers depend on the version: `demo.json` records which text they are of.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from saffu import files
from saffu.text.default_corpus import default_corpus

PROMPT = "If *size* is negative, read until the end of the"
TRANSCRIPTS = {
    "demo.txt": [
        "saffu train --out demo-model --force",
        "saffu eval demo-model",
        "saffu generate demo-model --samples 3 --seed 1",
    ],
    "demo-eval.txt": ["saffu eval demo-model"],
    "demo-score.txt": ["cat lines.txt", "saffu score demo-model lines.txt"],
    "demo-words.txt": ["saffu score demo-model lines.txt --words --keep 'bits>25'"],
    "demo-explain.txt": [f'saffu explain demo-model "{PROMPT}"'],
    "demo-explain-all.txt": [f'saffu explain demo-model "{PROMPT}" --target file --top 3 --all'],
    "demo-embed.txt": ["saffu embed demo-model must file --top 4"],
    "demo-arpa.txt": ["saffu export demo-model --to arpa --out model.arpa"],
    "demo-hf.txt": ["saffu export demo-model --to hf --out model-hf"],
}
LINES = [
    "Return the name of the file.",
    "Buy cheap watches today, limited offer!",
    "zxq vvk 88f plk mnb qqj",
    "The default value is None.",
]
FACTS = "demo.json"
WIDTH = 110  # of a line; longer ones are cut
NUMBER = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?")
SECONDS = re.compile(r"\d+\.\d+ s\b|(?<=\d\.\d{3})( +)\d+\.\d(?=  )")  # "in 1.0 s", and the column of the table


def printed(folder: Path) -> dict[str, str]:
    """Run all commands in an empty folder; what each transcript then says."""
    (folder / "lines.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return {name: "".join(_transcript(line, folder) for line in lines) for name, lines in TRANSCRIPTS.items()}


def _transcript(line: str, folder: Path) -> str:
    words = shlex.split(line)
    command = [sys.executable, "-m", *words] if words[0] == "saffu" else words
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True, text=True)
    rows = [f"$ {line}", *(row.expandtabs(15).rstrip() for row in done.stdout.splitlines())]
    return "".join(f"{row if len(row) <= WIDTH else row[: WIDTH - 1] + '…'}\n" for row in rows)


def fingerprint() -> str:
    """Which text the demo's model counts."""
    digest = hashlib.sha256()
    for document in default_corpus():
        digest.update(document.encode() + b"\0")
    return digest.hexdigest()


def write(results: Path, folder: Path) -> None:
    for name, text in printed(folder).items():
        files.write_file(results / name, text.encode())
    facts = {"text": fingerprint(), "python": sys.version.split()[0]}
    files.write_file(results / FACTS, (json.dumps(facts, indent=1) + "\n").encode())


def same(one: str, other: str, tolerance: float = 0.02) -> bool:
    """Whether two transcripts say the same: words exactly, numbers up to a tolerance, and seconds not at all.

    >>> same("p 1.68%, fitted in 2.7 s", "p 1.69%, fitted in 3.1 s"), same("p 1.68%", "p 1.98%"), same("a", "b")
    (True, False, False)
    """
    texts = [SECONDS.sub(r"\1", text) for text in (one, other)]
    words, others = (NUMBER.sub(" # ", text).split() for text in texts)
    pairs = zip(*([_value(number) for number in NUMBER.findall(text)] for text in texts), strict=False)
    return words == others and all(math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance) for a, b in pairs)


def _value(number: str) -> float:
    return float(number.replace(",", "").replace("−", "-"))
