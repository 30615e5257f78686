"""Minimal pairs and bits per byte of a model of ten million words, between published results.

    python benchmarks/babylm.py --train TEXT... --dev TEXT... --blimp DIR [--minutes 10 --device cuda]

TEXT are files or folders of the BabyLM corpora, plain or compressed; DIR holds the files of BLiMP, as published.
Without --minutes, the model is only counted.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from saffu import CalibratedConfig, SaffuLM
from saffu.companion.config import CompanionConfig
from saffu.text.sources import Source, find_files, open_source
from saffu.tools.minimal_pairs import evaluate_pairs, find_pairs, overall

PUBLISHED = [  # name, mean accuracy over the 67 files of BLiMP, in percent; trained on ten million words
    ("GPT-2 small, as a BabyLM baseline (65 to 67)", 66.0),
    ("GPT-BERT, causal (Charpentier & Samuel 2024)", 71.7),
    ("RecGPT-10M, best causal entry of 2026", 73.1),
]


def read(patterns: list[str], split: str) -> list[str]:
    """The documents of files and folders: whole files, or their lines."""
    texts = []
    for path in find_files(patterns):
        with open_source(Source(path, path.name)) as file:
            texts.append(file.read().decode())
    return texts if split == "file" else [line for text in texts for line in text.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--train", nargs="+", required=True, metavar="TEXT", help="files or folders to train on")
    parser.add_argument("--dev", nargs="+", required=True, metavar="TEXT", help="held-out files or folders")
    parser.add_argument("--blimp", type=Path, required=True, metavar="DIR", help="the folder of BLiMP's files")
    parser.add_argument("--split", choices=("file", "line"), default="file", help="what a document is (default: file)")
    parser.add_argument("--minutes", type=float, default=0.0, help="time in all, to train networks next to the counts")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, or cuda:N (default: cpu)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    train, dev = (read(texts, options.split) for texts in (options.train, options.dev))
    config = CompanionConfig(minutes=options.minutes, seed=options.seed) if options.minutes else CalibratedConfig()
    began = time.perf_counter()
    lm = SaffuLM(config, device=options.device if options.minutes else "cpu").fit(train)
    if options.minutes:
        lm.backprop(train, dev)
    seconds = time.perf_counter() - began
    print(f"{lm.score(dev).bits_per_byte:.3f} bits per byte of the held-out text, after {seconds:.0f} s")
    rows = evaluate_pairs(lm.model_, lm.tokenizer_, find_pairs([options.blimp]))
    facts = overall(rows)
    sides = {"": "saffu", "network_": "its networks alone", "counted_": "its counts alone"}
    sides["beyond_counts_"] = "saffu, minus half of what its counts say"
    own = [(name, 100 * facts[f"{side}mean_accuracy"]) for side, name in sides.items() if f"{side}accuracy" in facts]
    print(f"BLiMP, mean accuracy of {len(rows)} files ({facts['pairs']:,} pairs); published models: of all 67 files")
    for name, accuracy in sorted([*PUBLISHED, *own], key=lambda row: row[1]):
        print(f"{name:<50}{accuracy:6.1f}%")


if __name__ == "__main__":
    main()
