"""Compressors on the same text: bits per byte of the dev text after the training text was seen, as saffu is scored.

    python benchmarks/compressors.py --train FILES --dev FILES [--out results.json]

A compressor's cost of the dev text is the size of both texts compressed together less that of the training text alone.
It learns from the dev text while reading it, as `saffu eval --online` does. Each runs in a process of its own; those
that are not installed are left out: xz, zstd, and zpaq (commands), and PPMd (`pip install pyppmd`). `make bench` runs
them, too.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import shutil
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from saffu.text.documents import read_lines
from saffu.text.sources import find_files

PPMD, PPMD_ORDER, PPMD_MEMORY = "PPMd order 8", 8, 1 << 28
COMPRESSORS = {
    "xz -9e": ["xz", "-9e", "--keep", "--stdout", "FILE"],
    "zstd -22": ["zstd", "-22", "--ultra", "--long=27", "--quiet", "--stdout", "FILE"],
    "zpaq -m5": ["zpaq", "add", "ARCHIVE", "FILE", "-m5", "-threads", "1"],
    PPMD: ["pyppmd"],
}


def is_installed(title: str) -> bool:
    program = COMPRESSORS[title][0]
    return bool(find_spec(program)) if title == PPMD else bool(shutil.which(program))


def compressed_size(title: str, path: Path) -> int:
    """The size of a file after a compressor has compressed it."""
    if title == PPMD:
        import pyppmd

        return len(pyppmd.compress(path.read_bytes(), max_order=PPMD_ORDER, mem_size=PPMD_MEMORY, variant="H"))
    archive = path.with_suffix(".zpaq")
    words = [{"FILE": str(path), "ARCHIVE": str(archive)}.get(word, word) for word in COMPRESSORS[title]]
    output = subprocess.run(words, check=True, capture_output=True).stdout
    return archive.stat().st_size if archive.exists() else len(output)


def measure_compressor(title: str, train: bytes, dev: bytes) -> dict[str, float]:
    """Bits per byte of the dev text, seconds for both texts together, and the largest memory; in a fresh process."""
    with tempfile.TemporaryDirectory() as name:
        before, both = Path(name) / "train.txt", Path(name) / "both.txt"
        before.write_bytes(train)
        both.write_bytes(train + dev)
        smaller = compressed_size(title, before)
        began = time.perf_counter()
        larger = compressed_size(title, both)
        seconds = time.perf_counter() - began
    whose = resource.RUSAGE_SELF if title == PPMD else resource.RUSAGE_CHILDREN
    memory = resource.getrusage(whose).ru_maxrss / 1e3
    return {"bits_per_byte": 8 * (larger - smaller) / len(dev), "seconds": seconds, "peak_memory_mb": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--train", nargs="+", required=True, metavar="FILE")
    parser.add_argument("--dev", nargs="+", required=True, metavar="FILE")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the results as JSON")
    options = parser.parse_args()
    train, dev = (
        "".join(f"{text}\n" for _, text in read_lines(find_files(names), "file")).encode()
        for names in (options.train, options.dev)
    )
    rows: dict[str, Any] = {}
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for title in filter(is_installed, COMPRESSORS):
            rows[title] = pool.apply(measure_compressor, (title, train, dev))
            bits, seconds, memory = rows[title].values()
            print(f"{title:<14} {bits:.3f} bits/byte  {seconds:6.1f} s  {memory:5.0f} MB", flush=True)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
