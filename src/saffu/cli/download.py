"""saffu download: fetch a corpus."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from saffu.cli.options import Command, Parser, add_output_options, named_path
from saffu.cli.output import print_json, say
from saffu.format import plural


def add_options(parser: Parser, _: Sequence[str]) -> None:
    parser.add_argument("corpus", choices=("babylm",), metavar="CORPUS", help="babylm: corpora of the BabyLM challenge")
    parser.add_argument(
        "--out", type=named_path, required=True, metavar="DIR", help="destination of train/, dev/, and test/"
    )
    years = (2023, 2024)
    sizes = ("10M", "100M")
    help = "year of the challenge [2023]"
    parser.add_argument("--year", type=int, choices=years, default=2023, metavar="2023|2024", help=help)
    help = "words of training text [10M]"
    parser.add_argument("--size", choices=sizes, default="10M", metavar="10M|100M", help=help)
    help = "accept an archive whose checksum differs from the published one"
    parser.add_argument("--accept-changed", action="store_true", help=help)
    parser.add_argument("--keep-archives", action="store_true", help="keep the zip files in DIR/archives")
    add_output_options(parser)


def run(options: argparse.Namespace) -> None:
    from saffu.experiments import download

    try:
        manifest = download.fetch_babylm(
            options.year,
            options.size,
            options.out,
            accept_changed=options.accept_changed,
            keep_archives=options.keep_archives,
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; rerun the same command to resume the download") from None
    if options.json:
        print_json({"out": options.out, **manifest})
        return
    for split, files in manifest["files"].items():
        size = sum(file["bytes"] for file in files.values())
        say(options, f"{options.out / split}  {plural(len(files), 'file')}, {size:,} bytes")
    for name, archive in manifest["archives"].items():
        say(options, f"{name}  sha256 {archive['sha256']}")


COMMAND = Command(
    "download",
    "download a corpus, resuming a partial download",
    "CORPUS --out DIR [options]",
    "saffu download babylm --year 2024 --size 10M --out babylm\nsaffu train babylm/train --dev babylm/dev --out model",
    add_options,
    run,
)
