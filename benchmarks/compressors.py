"""Compressors on the same text: bits per byte of the dev text after the training text was seen, as saffu is scored.

    python benchmarks/compressors.py --train FILES --dev FILES [--out results.json]

A compressor's cost of the dev text is the size of both texts compressed together less that of the training text alone.
It learns from the dev text while reading it, as `saffu eval --online` does. Those that are not installed are left out:
xz, zstd, and zpaq (commands), and PPMd (`pip install pyppmd`).
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from saffu.text.documents import read_lines
from saffu.text.sources import find_files

COMMANDS = {
    "xz -9e": ["xz", "-9e", "--keep", "--stdout", "FILE"],
    "zstd -22": ["zstd", "-22", "--ultra", "--long=27", "--quiet", "--stdout", "FILE"],
    "zpaq -m5": ["zpaq", "add", "ARCHIVE", "FILE", "-m5", "-threads", "1"],
}
PPMD_ORDER, PPMD_MEMORY = 8, 1 << 28


def compressed_size(command: list[str], path: Path, folder: Path) -> int:
    """The size of a file after a command has compressed it."""
    archive = folder / "archive.zpaq"
    archive.unlink(missing_ok=True)
    words = [{"FILE": str(path), "ARCHIVE": str(archive)}.get(word, word) for word in command]
    output = subprocess.run(words, check=True, capture_output=True).stdout
    return archive.stat().st_size if archive.exists() else len(output)


def ppmd_size(path: Path) -> int:
    import pyppmd

    return len(pyppmd.compress(path.read_bytes(), max_order=PPMD_ORDER, mem_size=PPMD_MEMORY, variant="H"))


def measure(size: Callable[[Path], int], before: Path, both: Path, dev_bytes: int) -> dict[str, Any]:
    began = time.perf_counter()
    bits = 8 * (size(both) - size(before))
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024  # of the largest process so far
    return {"bits_per_byte": bits / dev_bytes, "seconds": time.perf_counter() - began, "peak_memory_mb": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--train", nargs="+", required=True, metavar="FILE")
    parser.add_argument("--dev", nargs="+", required=True, metavar="FILE")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the results as JSON")
    options = parser.parse_args()
    texts = [
        "".join(f"{text}\n" for _, text in read_lines(find_files(names), "file")).encode()
        for names in (options.train, options.dev)
    ]
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before, both = folder / "train.txt", folder / "both.txt"
        before.write_bytes(texts[0])
        both.write_bytes(texts[0] + texts[1])
        sizes: dict[str, Callable[[Path], int]] = {
            title: lambda path, command=command: compressed_size(command, path, folder)
            for title, command in COMMANDS.items()
            if shutil.which(command[0])
        }
        if find_spec("pyppmd"):
            sizes[f"PPMd order {PPMD_ORDER}"] = ppmd_size
        for title, size in sizes.items():
            rows[title] = measure(size, before, both, len(texts[1]))
            print(
                f"{title:<14} {rows[title]['bits_per_byte']:.3f} bits/byte  {rows[title]['seconds']:6.1f} s", flush=True
            )
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
