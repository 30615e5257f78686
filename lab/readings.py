"""Grids under readings of the paper, with explicit attention, train and dev perplexities, and document models.

    python -m lab readings --train FILES --tokens 1e6 --out results.jsonl [--dev FILES] [--device cuda]

Each reading is a grid of its own. `lab.search` tries many more, with uniform attention.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from lab.rows import Row, append_row, head, read_rows
from lab.structure import HALVES, Structure, described, logs, structure
from saffu.errors import SaffuError
from saffu.experiments.grid import DOCUMENT_SHARDS, MODES, SIZES, grid
from saffu.experiments.results import Results, perplexities_of
from saffu.experiments.scoring import EVAL_TOKENS, GridCorpus, run_grid, usual_memory
from saffu.experiments.tables import Perplexities
from saffu.paper.devices import usable_device
from saffu.text.corpus import TokenCorpus
from saffu.text.documents import read_lines
from saffu.text.sources import find_files
from saffu.text.tokenizer import Tokenizer, TokenizerConfig

FORMER: dict[str, Any] = {
    "special_noise": "zero",
    "block_advance": "whole",
    "radius_padding": "left",
    "radius_span": "blocks",
}
"""What the default reading of saffu 0.2.0 had instead."""
EARLIER: dict[str, Any] = {
    "special_noise": "pure",
    "hidden_dimension": 512,
    "block_advance": "whole",
    "radius_padding": "left",
}
"""And the one before; many readings were tried from there."""
READINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "0.2.0": FORMER,
    "earlier": EARLIER,
    "natural-logarithm": {"slot_weight": "natural"},
    "unit-weights": {"slot_weight": "unit"},
    "counted-specials": {"special_noise": "counted"},
    "padding-noise": {"special_noise": "padding"},
    "pure-noise": {"special_noise": "pure"},
    "normalized-bits": {"hidden_targets": "normalized"},
    **{f"hidden-{width}": {"hidden_dimension": width} for width in (64, 256, 512, 1024, 2048)},
    **{f"smoothing-{value:g}": {"smoothing": value} for value in (1e-6, 1e-2, 0.1, 1.0, 10.0)},
    "uniform-attention": {"attention": "uniform"},
    "attention-priming-slots": {"attention_priming": "slots"},
    "attention-priming-measured": {"attention_priming": "measured"},
    "decoder-priming-measured": {"decoder_priming": "measured"},
    "negative-variation": {"variation_sign": -1},
    "query-first": {"query_slot": "first"},
    "sliding-blocks": {"block_advance": "sliding"},
    "whole-blocks": {"block_advance": "whole"},
    "radius-of-distances": {"radius_padding": "left"},
    "left-padding": {"padding": "left"},
    "radius-within-block": {"radius_span": "block"},
    "radius-over-document": {"radius_span": "document"},
    "radius-through-blocks": {"radius_span": "blocks"},
    "radius-from-start": {"radius_span": "start"},
    "tuned-once": {"tune_folds": 1, "fold_tokens": 500_000},
}


def changes_of(reading: str) -> dict[str, Any]:
    """The settings that a reading changes; "a+b" makes the changes of both.

    >>> changes_of("left-padding+hidden-256")
    {'padding': 'left', 'hidden_dimension': 256}
    """
    changes: dict[str, Any] = {}
    for name in reading.split("+"):
        if name not in READINGS:
            raise SaffuError(f"unknown reading {name!r}; choose from {', '.join(READINGS)}")
        changes |= READINGS[name]
    return changes


def run_readings(
    out: Path,
    corpus: GridCorpus,
    names: Iterable[str] = tuple(READINGS),
    blocks: Sequence[int] = SIZES,
    radii: Sequence[int] = SIZES,
    modes: Sequence[str] = MODES,
    device: torch.device | str = "cpu",
    draw: int = 0,
) -> list[Row]:
    """Run the grid under each reading and append one line per reading to the file `out`.

    Readings that are in the file already, for the same text and sizes, are not run again. `draw` is noted in the rows.
    """
    shape = {"blocks": list(blocks), "radii": list(radii), "modes": list(modes)}
    done = {row["reading"]: row for row in read_rows(out) if (row["text"], row["shape"]) == (corpus.fingerprint, shape)}
    rows = []
    settings = {name: changes_of(name) for name in names}
    for name, changes in settings.items():
        if name not in done:
            done[name] = run_reading(corpus, name, changes, shape, device) | {"draw": draw}
            append_row(out, done[name])
        rows.append(done[name])
        print(summary(done[name]), flush=True)
    return rows


def run_reading(
    corpus: GridCorpus, name: str, changes: dict[str, Any], shape: dict[str, Any], device: torch.device | str
) -> Row:
    """Fit and score the grid of a reading. The default one also gets the table with a document model."""
    shards = 0 if changes else DOCUMENT_SHARDS
    cells = grid(**shape, document_shards=shards, settings={setting: [value] for setting, value in changes.items()})
    with tempfile.TemporaryDirectory(prefix="saffu-") as folder:
        Results(Path(folder)).save_run({"text": corpus.fingerprint})  # which spares counting n-gram baselines
        finished = run_grid(Path(folder), cells, corpus, device, usual_memory(device))
    least = [cell.least_attention for cell in finished if cell.least_attention is not None]
    return {
        "reading": name,
        "changes": changes,
        "text": corpus.fingerprint,
        "tokens": corpus.train.targets,
        "documents": corpus.train.documents,
        "vocabulary": corpus.vocabulary,
        "unigram": unigram_perplexities(corpus),
        "shape": shape,
        "failures": sum(cell.failure is not None for cell in finished),
        "least_attention": min(least, default=None),
        "perplexities": [
            [*key, *(float(f"{value:.6g}") for value in pair)] for key, pair in perplexities_of(finished).items()
        ],
    }


def unigram_perplexities(corpus: GridCorpus) -> dict[str, float]:
    """What frequencies alone give on both samples: the level above which context starts to count."""
    frequencies = corpus.train.frequencies(corpus.vocabulary) + 1e-3
    log_p = np.log(frequencies / frequencies.sum())
    return {name: math.exp(-float(log_p[sample.ids].mean())) for name, sample in corpus.samples.items()}


def perplexities(row: Row) -> Perplexities:
    """The train and dev perplexities of a row, by cell."""
    return {(modes, document, b, r): (train, dev) for modes, document, b, r, train, dev in row["perplexities"]}


def structure_of(row: Row) -> Structure:
    """The row's dev perplexities compared with the printed ones."""
    return structure(logs(perplexities(row)))


def summary(row: Row) -> str:
    ours = perplexities(row)
    found = structure_of(row)
    best = min((dev for _, dev in ours.values()), default=math.nan)
    return (
        f"{row['reading']:<30} {described(found)}, rank correlation {found.rank_correlation:.3f}, dev/train "
        f"{dev_over_train(ours):.3f}, best dev {best:.1f}"
    )


def dev_over_train(ours: Perplexities) -> float:
    """The median ratio of dev to train perplexity, without a document model."""
    return median(dev / train for key, (train, dev) in ours.items() if not key[1]) if ours else math.nan


def markdown(rows: Sequence[Row]) -> str:
    """All readings as a table, the nearest to the printed tables first."""
    lines = head(["reading", "RMS", *HALVES, "rank correlation", "dev/train", "best dev"])
    for row in sorted(rows, key=lambda row: structure_of(row).rms):
        ours = perplexities(row)
        found = structure_of(row)
        values = [f"{rms:.3f}" for rms in (found.rms, *found.rms_by_half.values())]
        values += [f"{found.rank_correlation:.2f}", f"{dev_over_train(ours):.3f}"]
        values.append(f"{min((dev for _, dev in ours.values()), default=math.nan):.1f}")
        lines.append(f"| {label(row)} | " + " | ".join(values) + " |")
    return "\n".join(lines) + "\n"


def label(row: Row) -> str:
    """The settings of a reading in words.

    >>> label({"changes": EARLIER | {"slot_weight": "unit"}})
    'earlier default, slot_weight unit'
    """
    changes = dict(row["changes"])
    words = []
    for name, former in {"0.2.0": FORMER, "earlier default": EARLIER}.items():
        if former.items() <= changes.items():
            words = [name]
            changes = {setting: value for setting, value in changes.items() if setting not in former}
            break
    return ", ".join(words + [f"{name} {value}" for name, value in changes.items()]) or "**the default**"


def build_corpus(
    train: Sequence[Path],
    dev: Sequence[Path],
    tokens: int,
    eval_tokens: int = EVAL_TOKENS,
    first: bool = False,
    draw: int = 0,
) -> GridCorpus:
    """About `tokens` of the training files, one document per line, and samples to score.

    The counted documents are spread evenly over the files, or are drawn at random with the seed `draw`, or are the
    `first` ones. Without `dev`, held-out text is a sample of the other documents; otherwise each file of `dev`
    contributes in proportion to its training file. The tokenizer is learned from all of the training files, as in the
    paper.
    """
    tokenizer = Tokenizer.train((text for _, text in read_lines(train, "line")), TokenizerConfig(bpe_count="types"))
    parts = [TokenCorpus.build(read_lines([path], "line"), tokenizer, progress="tokenize") for path in train]
    whole = joined(parts)
    if draw:
        whole = whole.select(np.random.default_rng(draw).permutation(whole.documents))
    share = min(1.0, tokens / whole.targets)
    counted, rest = (whole.head(tokens), whole) if first else whole.split(share)
    if dev:
        if len(dev) != len(train):
            raise SaffuError(f"{len(train)} training files need as many held-out files, got {len(dev)}")
        held_out = [TokenCorpus.build(read_lines([path], "line"), tokenizer, progress="tokenize") for path in dev]
        shares = [part.targets / whole.targets for part in parts]
        rest = joined([part.sample(round(eval_tokens * s)) for part, s in zip(held_out, shares, strict=True)])
    elif first:
        rest = whole.slice(counted.documents, whole.documents)
    if not rest.targets:
        raise SaffuError("all of the text is counted; pass held-out text with `dev`, or lower `tokens`")
    return GridCorpus.build(counted, rest, tokenizer, eval_tokens)


def joined(corpora: Sequence[TokenCorpus]) -> TokenCorpus:
    """The documents of several corpora, one corpus after the other."""
    lengths = np.concatenate([np.diff(corpus.starts) for corpus in corpora])
    starts = np.concatenate([[0], lengths.cumsum()]).astype(np.int64)
    ids, sizes = (np.concatenate([getattr(corpus, name) for corpus in corpora]) for name in ("ids", "sizes"))
    return TokenCorpus(ids, starts, sizes)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--train", nargs="+", required=True, metavar="FILE", help="training text")
    parser.add_argument("--dev", nargs="+", default=[], metavar="FILE", help="held-out text (default: other documents)")
    parser.add_argument("--tokens", type=float, default=1e6, help="number of tokens to count (default: 1e6)")
    parser.add_argument("--first", action="store_true", help="count the first tokens, not documents from all over")
    parser.add_argument("--draw", type=int, default=0, help="seed of a random choice of documents (default: evenly)")
    parser.add_argument("--eval-tokens", type=float, default=EVAL_TOKENS, help="targets per sample (default: 100000)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="results, one line of JSON per reading")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, or cuda:N (default: cpu)")
    parser.add_argument(
        "--readings", default=",".join(READINGS), help="names separated by commas, a+b for both changes (default: all)"
    )
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="values of b and r (default: 2,4,…,128)")


def run_command(options: argparse.Namespace) -> None:
    train, dev = ([path for name in names for path in find_files([name])] for names in (options.train, options.dev))
    device = usable_device(options.device)
    corpus = build_corpus(train, dev, int(options.tokens), int(options.eval_tokens), options.first, options.draw)
    sizes = [int(size) for size in options.sizes.split(",")]
    names = options.readings.split(",")
    rows = run_readings(options.out, corpus, names, sizes, sizes, device=device, draw=options.draw)
    print(markdown(rows))
