"""python -m lab COMMAND …: run one of the lab's studies, or fill in the pages of docs/ from its results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lab import (
    claims,
    golden_folders,
    journeys,
    own_pairs,
    pages,
    protocol,
    recorded_runs,
    size,
    warm_starts,
)
from saffu.errors import SaffuError

COMMANDS = {
    "claims": claims,
    "warm-starts": warm_starts,
    "protocol": protocol,
    "pages": pages,
    "own-pairs": own_pairs,
    "golden-folders": golden_folders,
    "journeys": journeys,
    "recorded-runs": recorded_runs,
    "size": size,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        meaning = (module.__doc__ or "").split("\n")[0]
        command = commands.add_parser(name, help=meaning, description=meaning)
        module.add_options(command)
        command.set_defaults(run_command=module.run_command)
    options = parser.parse_args(arguments)
    try:
        options.run_command(options)
    except SaffuError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
