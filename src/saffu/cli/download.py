"""saffu data: fetch a corpus."""

import argparse
import sys
from pathlib import Path

from saffu.commands.common import Verb, print_json
from saffu.wording import number_of


def add(verb: Verb) -> None:
    parser = verb(
        "data",
        run,
        "fetch a corpus from its official host, resuming where an earlier try stopped",
        "saffu data babylm --year 2024 --size 10M --out babylm\n"
        "  saffu train babylm/train --dev babylm/dev --out model",
    )
    parser.add_argument("corpus", choices=("babylm",), help="the corpora of the BabyLM challenge")
    parser.add_argument("--year", type=int, choices=(2023, 2024), default=2023, help="of the challenge (default: 2023)")
    parser.add_argument("--size", choices=("10M", "100M"), default="10M", help="words to train on (default: 10M)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="gets train/, dev/ and test/")
    parser.add_argument(
        "--accept-changed", action="store_true", help="take an archive whose checksum is not the known one"
    )
    parser.add_argument("--keep-archives", action="store_true", help="keep the zip files, in DIR/archives")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> None:
    from saffu import data

    try:
        manifest = data.fetch_babylm(
            options.year,
            options.size,
            options.out,
            accept_changed=options.accept_changed,
            keep_archives=options.keep_archives,
        )
    except KeyboardInterrupt:
        print("saffu: interrupted; the same command goes on where this one stopped", file=sys.stderr)
        sys.exit(130)
    if options.json:
        print_json({"out": str(options.out), **manifest})
        return
    for split, files in manifest["files"].items():
        size = sum(file["bytes"] for file in files.values())
        print(f"{options.out / split}  {number_of(len(files), 'file')}, {size:,} bytes")
    for name, archive in manifest["archives"].items():
        print(f"{name}  sha256 {archive['sha256']}")
