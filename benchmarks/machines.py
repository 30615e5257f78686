"""What counts of a text have in common between machines: other processors are imitated on this one.

    python benchmarks/machines.py TEXTS [--max-bytes 1000000] [--out results.json]

Each text, and the English that ships with Python, is counted in a process of its own under each setting. The table
shows how many tokens have another class than by default, in any view, and the largest differences of exponents, of bits
per token, and of bits per byte. Every 20th line is not counted, but scored.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from saffu import SaffuLM
from saffu.format import table
from saffu.text.default_corpus import default_corpus
from saffu.text.documents import read_lines

SETTINGS = {
    "default": {},
    "Haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "Prescott": {"OPENBLAS_CORETYPE": "Prescott"},
    "SkylakeX": {"OPENBLAS_CORETYPE": "SkylakeX"},
    "one thread": {"SAFFU_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    "no AVX2": {
        "OPENBLAS_CORETYPE": "Nehalem",
        "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4",
    },
}
ENGLISH = "Python's English"
SCORED = 20
COUNTED = ("fingerprint", "other_class", "exponents", "bits_per_token", "bits_per_byte")


def count(text: str, max_bytes: int, out: Path) -> None:
    """Count a text in this process, and write what could depend on the machine."""
    lines: list[str] = []
    for line in default_corpus() if text == ENGLISH else (line for _, line in read_lines([text])):
        lines.append(line)
        max_bytes -= len(line.encode()) + 1
        if max_bytes < 0:
            break
    lm = SaffuLM().fit(line for place, line in enumerate(lines) if place % SCORED)
    encoder: Any = lm.model_.encoder  # type: ignore[attr-defined]
    scored = lm.tokenize(lines[::SCORED])
    facts = {
        "fingerprint": lm.fingerprint_,
        "classes": [encoder.output_classes.tolist(), *(each.tolist() for each in encoder.context_classes.values())],
        "exponents": [*encoder.plain.ravel().tolist(), *encoder.memory.ravel().tolist()],
        "bits_per_token": (lm.model_.log_probabilities(scored) / -np.log(2)).tolist(),
        "bits_per_byte": lm.score(scored).bits_per_byte,
    }
    out.write_text(json.dumps(facts), "utf-8")


def difference(usual: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What differs between two counts of a text."""
    real = {name: np.abs(np.subtract(usual[name], other[name])).max() for name in COUNTED[2:]}
    return {
        "fingerprint": "equal" if usual["fingerprint"] == other["fingerprint"] else "differs",
        "tokens": len(usual["classes"][0]),
        "other_class": int((np.array(usual["classes"]) != np.array(other["classes"])).any(0).sum()),
        **{name: float(value) for name, value in real.items()},
    }


def compare(text: str, max_bytes: int, folder: Path) -> list[dict[str, Any]]:
    """Count a text under each setting that this processor can imitate."""
    counts = {}
    for name, environment in SETTINGS.items():
        out = folder / "facts.json"
        command = [sys.executable, __file__, text, "--max-bytes", str(max_bytes), "--count", str(out)]
        if subprocess.run(command, env={**os.environ, "TQDM_DISABLE": "1", **environment}).returncode == 0:
            counts[name] = json.loads(out.read_text("utf-8"))
    usual = counts.pop("default")
    return [{"text": Path(text).name, "setting": name, **difference(usual, other)} for name, other in counts.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("texts", nargs="*")
    parser.add_argument("--max-bytes", type=int, default=1_000_000, metavar="N", help="of each text")
    parser.add_argument("--count", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the results as JSON")
    options = parser.parse_args()
    if options.count:
        count(options.texts[0], options.max_bytes, options.count)
        return
    with tempfile.TemporaryDirectory() as folder:
        texts = [ENGLISH, *options.texts]
        rows = list(chain.from_iterable(compare(text, options.max_bytes, Path(folder)) for text in texts))
    names = list(rows[0])
    shown = [[f"{value:.1e}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    print(table(names, shown))
    if options.out:
        most = {name: max(row[name] for row in rows) for name in COUNTED[1:]}
        facts = {"texts": len(texts), "settings": len(SETTINGS), "largest": most, "rows": rows}
        options.out.write_text(json.dumps(facts, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
