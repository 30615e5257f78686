"""Perplexity on the Penn Treebank, words as tokens, between published results.

    python benchmarks/ptb.py --data DIR [--minutes 5 --device cuda]

DIR holds ptb.train.txt, ptb.valid.txt and, if there is one, ptb.test.txt, as Mikolov prepared them, plain or gzipped.
All 10,000 words are kept; every file is one running text. Without --minutes, the model is only counted.
"""

from __future__ import annotations

import argparse
import gzip
import time
from pathlib import Path

from saffu import CalibratedConfig, SaffuLM, TokenizerConfig
from saffu.companion.config import CompanionConfig

PUBLISHED = [  # name, perplexity of the validation text, of the test text
    ("Kneser–Ney 5-gram (Mikolov & Zweig 2012)", None, 141.2),
    ("Kneser–Ney 5-gram and cache (Mikolov & Zweig 2012)", None, 125.7),
    ("recurrent network (Mikolov & Zweig 2012)", None, 124.7),
    ("LSTM, medium, with dropout (Zaremba et al. 2014)", 86.2, 82.7),
    ("LSTM, large, with dropout (Zaremba et al. 2014)", 82.2, 78.4),
    ("AWD-LSTM (Merity et al. 2018)", 60.0, 57.3),
    ("AWD-LSTM and continuous cache (Merity et al. 2018)", 53.9, 52.8),
    ("Mogrifier LSTM (Melis et al. 2020)", 51.4, 50.1),
    ("Mogrifier LSTM and dynamic evaluation (Melis et al. 2020)", 44.9, 44.8),
]


def read(folder: Path, part: str) -> str | None:
    """The text of a part; None if it is not there."""
    plain, compressed = (folder / f"ptb.{part}.txt{ending}" for ending in ("", ".gz"))
    if plain.is_file():
        return plain.read_text("utf-8")
    return gzip.decompress(compressed.read_bytes()).decode() if compressed.is_file() else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="the folder of the Penn Treebank")
    parser.add_argument("--minutes", type=float, default=0.0, help="time in all, to train networks next to the counts")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, or cuda:N (default: cpu)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    texts = {part: read(options.data, part) for part in ("train", "valid", "test")}
    train, valid = texts["train"], texts["valid"]
    if train is None or valid is None:
        parser.error(f"{options.data} has no ptb.train.txt and ptb.valid.txt, plain or gzipped")
    config = CompanionConfig(minutes=options.minutes, seed=options.seed) if options.minutes else CalibratedConfig()
    words = TokenizerConfig(words_as_tokens=True, min_word_count=1)
    began = time.perf_counter()
    lm = SaffuLM(config, tokenizer=words, device=options.device if options.minutes else "cpu").fit([train])
    if options.minutes:
        lm.backprop([train], [valid])
    seconds = time.perf_counter() - began

    def perplexities(**how: bool) -> list[float | None]:
        return [None if text is None else lm.score([text], **how).perplexity for text in (valid, texts["test"])]

    networks = lm.config.networks if isinstance(lm.config, CompanionConfig) and lm.model_.networks else 0
    name = f"saffu, counted, {networks} networks" if networks else "saffu, counted"
    rows = [*PUBLISHED, (f"{name}, {seconds:.0f} s on {options.device}", *perplexities())]
    if networks:
        rows.append(("the same, online", *perplexities(online=True)))
    rows.sort(key=lambda row: -(row[1] or row[2] or 0.0))
    for title, *values in [("", "valid", "test"), *rows]:
        cells = [f"{value:7.1f}" if isinstance(value, float) else f"{value or '–':>7}" for value in values]
        print(f"{title:<62}" + "".join(cells))


if __name__ == "__main__":
    main()
