"""saffu reproduce: the paper's experiments, end to end, each step an ordinary command that is shown as it runs."""

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

from saffu.commands.common import Verb, add_common_options, count, print_json
from saffu.errors import SaffuError

RADII = (8, 128)
TUNED_FOLDS = 10  # over which the paper solves attention again before it trains


def add(verb: Verb) -> None:
    parser = verb(
        "reproduce",
        run,
        "run the paper's experiments with the paper's preset: its training logs, its figure, its tables",
        "saffu data babylm --out babylm\n"
        "  saffu reproduce logs --data babylm --out paper --device cuda\n"
        "  saffu reproduce figure --data babylm --out paper --device cuda --rate 0.01 --max-folds 12",
    )
    parser.add_argument("what", choices=EXPERIMENTS, help="warm start and training log; warm against cold; ablation")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="corpus that saffu data fetched")
    parser.add_argument("--out", type=Path, default=Path("paper"), metavar="DIR", help="for results (default: paper)")
    parser.add_argument("--size", choices=("10M", "100M"), help="which training text, if DIR has both")
    parser.add_argument("--tokens", type=count, metavar="N", help="of the training text (default: all; tables: 1e6)")
    parser.add_argument("--rate", type=float, metavar="X", help="learning rate (default: the paper's, 5e-6)")
    parser.add_argument(
        "--max-folds", type=int, metavar="N", help="of backpropagation (default: until it stops itself)"
    )
    add_common_options(parser)


def run(options: argparse.Namespace) -> None:
    from saffu.data import find_splits

    splits = find_splits(options.data, options.size)
    EXPERIMENTS[options.what](options, named(splits["train"]), named(splits["dev"]))


def named(files: list[Path]) -> list[str]:
    """Some files as the command line would name them: by their folder, if it holds no others."""
    from saffu.text import find_files

    folder = files[0].parent
    alone = all(path.parent == folder for path in files) and find_files([folder]) == sorted(files)
    return [str(folder)] if alone else [str(path) for path in files]


def logs(options: argparse.Namespace, train: list[str], dev: list[str]) -> None:
    """The 'best' model (sum blocks of 128, cat radius of 8): solved, tuned, trained; and its log."""
    folder = trained(options, train, dev, "warm", RADII[0])
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    if options.json:
        print_json({"out": str(folder), "log": log})
        return
    print(f"\n{'step':<14} {'dev ppl':>9}  sample")
    for row in log:
        if "dev_perplexity" in row:
            print(f"{row['stage']:<14} {row['dev_perplexity']:>9.2f}  {' '.join(row.get('sample', '').split())}")
    print(f"the whole log is {folder / 'log.jsonl'}")


def figure(options: argparse.Namespace, train: list[str], dev: list[str]) -> None:
    """Warm against cold starts, for both radii."""
    runs = [trained(options, train, dev, start, radius) for radius in RADII for start in ("warm", "cold")]
    drawn = ["--out", options.out / "figure", "--title", "warm against cold starts"]
    saffu(options, "compare", *runs, *drawn, last=True)


def tables(options: argparse.Namespace, train: list[str], dev: list[str]) -> None:
    """The ablation of about 250 models, and the report made of it."""
    given = ["--tokens", options.tokens] if options.tokens else []
    place = ["--out", options.out / "grid", "--device", options.device]
    saffu(options, "ablate", *train, "--dev", *dev, *place, *given)
    saffu(options, "report", options.out / "grid", last=True)


EXPERIMENTS: dict[str, Callable[[argparse.Namespace, list[str], list[str]], None]] = {
    "logs": logs,
    "figure": figure,
    "tables": tables,
}


def trained(options: argparse.Namespace, train: list[str], dev: list[str], start: str, radius: int) -> Path:
    """The folder of a run of backpropagation: done now, gone on with, or done before."""
    from saffu import checkpoint

    folder: Path = options.out / f"{start}-{radius}"
    further = ["--max-folds", options.max_folds] if options.max_folds else []
    if (folder / checkpoint.STATE).exists():
        state = checkpoint.read_state(folder)
        if options.rate and options.rate != state["settings"].rate:
            raise SaffuError(f"{folder} was trained at the rate {state['settings'].rate:g}; choose another --out")
        longer = (options.max_folds or 0) > state["settings"].max_folds > 0
        if longer or not state["progress"]["ended"]:
            saffu(options, "train", "--resume", folder, *further)
        return folder
    given = [*further, *(["--rate", options.rate] if options.rate else [])]
    given += ["--tokens", options.tokens] if options.tokens else []
    given += ["--tune", TUNED_FOLDS] if start == "warm" else []
    shape = ["--preset", "paper", "--radius", radius, "--backprop", "--start", start, "--device", options.device]
    saffu(options, "train", *train, "--dev", *dev, "--out", folder, "--force", *shape, *given)
    return folder


def saffu(options: argparse.Namespace, *arguments: object, last: bool = False) -> None:
    """Run another verb, and show its command. With --json only what the last one prints is for standard output."""
    from saffu.cli import parser

    words = [str(argument) for argument in arguments] + ["--json"] * (options.json and last)
    shown = sys.stderr if options.json else sys.stdout
    print("$ " + shlex.join(["saffu", *words]), file=shown, flush=True)
    verb = parser().parse_args(words)
    with redirect_stdout(sys.stdout if last else shown):
        verb.run(verb)
