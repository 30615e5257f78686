"""How fast and how good the models are on a text, each measured in a process of its own: run by `make bench`.

    python benchmarks/bench.py --train books/ --dev held-out/ --out results.json

Without text it takes the English that ships with Python. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from compressors import COMPRESSORS, is_installed, measure_compressor
from peers import PEERS

CASES = ("calibrated", "calibrated --split line", "paper", "kenlm", "gpt2", *COMPRESSORS)
NEEDED = {"kenlm": ("kenlm",), "gpt2": ("torch", "transformers"), "paper": ("torch",)}
COMPARED = {
    "fit_s": "fit, s",
    "fit_peak_memory_mb": "peak memory, MB",
    "bits_per_byte": "bits per byte",
    "score_tokens_per_s": "score, tokens/s",
    "generate_tokens_per_s": "generate, tokens/s",
    "load_and_score_a_line_s": "load and score a line, s",
    "folder_mb": "on disk, MB",
}
LINES = 500  # scored one by one
GENERATED = 20_000  # tokens written, one document after another


def main() -> None:
    options = arguments()
    if options.case:  # the process of one case
        print(json.dumps(measure(options)))
        return
    results: dict[str, Any] = {"machine": machine(), "cases": {}}
    for case in options.cases.split(","):
        if missing := [name for name in NEEDED.get(case, ()) if find_spec(name) is None]:
            print(f"{case}: skipped; pip install {' '.join(missing)}\n")
            continue
        if case in COMPRESSORS and not is_installed(case):
            print(f"{case}: skipped; install {COMPRESSORS[case][0]}\n")
            continue
        rows = [run_case(case, options) for _ in range(options.repeat)]
        results["cases"][case] = {key: [row[key] for row in rows] for key in rows[0]}
        print(table(case, results["cases"][case]), flush=True)
    print(comparison(results["cases"]))
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", nargs="*", default=[], help="files or folders to count")
    parser.add_argument("--dev", nargs="*", default=[], help="files or folders to score")
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated, of: " + "; ".join(CASES))
    parser.add_argument("--repeat", type=int, default=1, help="runs of each case")
    parser.add_argument("--gpt-seconds", type=float, default=60.0, help="how long the GPT-2 is trained")
    parser.add_argument("--out", type=Path, help="write the numbers to this JSON file")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_case(case: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure in a fresh process, so that peak memory and warm caches are its own."""
    text = ["--train", *options.train, "--dev", *options.dev, "--gpt-seconds", str(options.gpt_seconds)]
    done = subprocess.run(
        [sys.executable, __file__, "--case", case, *text], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{case}: {done.stderr.strip().splitlines()[-1] if done.stderr else 'failed'}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All numbers of one case."""
    import saffu
    from saffu.text.corpus import TokenCorpus
    from saffu.text.tokenizer import Tokenizer, TokenizerConfig

    if options.case in COMPRESSORS:
        texts = [lines_of(options.train, "file", held_out=False), lines_of(options.dev, "file", held_out=True)]
        train, dev = ("".join(f"{line}\n" for _, line in text()).encode() for text in texts)
        found = measure_compressor(options.case, train, dev)
        return {
            "fit_s": found["seconds"],
            "fit_peak_memory_mb": found["peak_memory_mb"],
            "bits_per_byte": found["bits_per_byte"],
        }
    preset, _, flags = options.case.partition(" ")
    split = "line" if "line" in flags or preset in ("paper", "kenlm") else "file"
    facts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        train, dev = lines_of(options.train, split, held_out=False), lines_of(options.dev, split, held_out=True)
        config = TokenizerConfig(bpe_count="types" if preset == "paper" else "tokens")
        tokenizer = timed(facts, "train_tokenizer_s", lambda: Tokenizer.train((text for _, text in train()), config))
        corpus = timed(facts, "tokenize_s", lambda: TokenCorpus.build(train(), tokenizer, Path(scratch)))
        held_out = TokenCorpus.build(dev(), tokenizer)
        if preset in PEERS:
            time_to_train = {"train_s": options.gpt_seconds} if preset == "gpt2" else {}
            return facts | PEERS[preset](corpus, held_out, tokenizer, Path(scratch), **time_to_train)
        lm = saffu.SaffuLM(saffu.preset(preset), tokenizer=tokenizer)
        timed(facts, "fit_s", lambda: lm.fit(corpus))
        facts["fit_peak_memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        facts |= {"tokens": corpus.targets, "vocabulary": len(tokenizer), "parameters": lm.parameters_}
        score(facts, "", lm, held_out)
        if preset == "calibrated":
            facts["online_bits_per_byte"] = lm.score(held_out, online=True).bits_per_byte
            plain = saffu.SaffuLM(lm.config, tokenizer=tokenizer)
            plain.__dict__.update(lm.__dict__)
            plain.model_ = lm.model_.without_memory()
            score(facts, "without_cache_", plain, held_out)
        score_lines(facts, lm, [text for _, text in dev() if text][:LINES])
        facts["generate_tokens_per_s"] = generation_speed(lm)
        for name, reference in lm.reference_scores(held_out).items():
            facts[f"{name}_bits_per_byte"] = reference.bits_per_byte
        folder = Path(scratch) / "model"
        timed(facts, "save_s", lambda: lm.save(folder))
        facts["folder_mb"] = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        command = [sys.executable, "-c", LOAD, str(folder)]
        timed(facts, "load_and_score_a_line_s", lambda: subprocess.run(command, check=True, capture_output=True))
    return facts


LOAD = "import sys, saffu; print(saffu.load(sys.argv[1]).score(['Once upon a time there was a little girl.']))"


def lines_of(patterns: list[str], split: str, held_out: bool) -> Callable[[], Iterator[tuple[bool, str]]]:
    from saffu.text.corpus import lines_of as lines_of_documents
    from saffu.text.default_corpus import default_corpus
    from saffu.text.documents import hold_out, read_lines
    from saffu.text.sources import Sources

    if patterns:
        return lambda: read_lines(Sources(patterns), split)
    paragraphs = list(default_corpus())
    return lambda: hold_out(lines_of_documents(paragraphs), 20, held_out)


def timed(facts: dict[str, Any], name: str, work: Callable[[], Any]) -> Any:
    began = time.perf_counter()
    result = work()
    facts[name] = time.perf_counter() - began
    return result


def score(facts: dict[str, Any], prefix: str, lm: Any, corpus: Any) -> None:
    lm.score(corpus.head(2000))  # tables are laid out when first used
    began, busy = time.perf_counter(), time.process_time()
    found = lm.score(corpus)
    facts[f"{prefix}score_tokens_per_s"] = corpus.targets / (time.perf_counter() - began)
    facts[f"{prefix}score_tokens_per_core_s"] = corpus.targets / (time.process_time() - busy)
    facts[f"{prefix}bits_per_byte"] = found.nll / math.log(2) / found.bytes


def score_lines(facts: dict[str, Any], lm: Any, texts: list[str]) -> None:
    """What a line costs on its own, and as one of a batch."""
    work: dict[str, Callable[[], object]] = {
        "score_line": lambda: [lm.score_lines([text]) for text in texts],
        "score_line_in_batch": lambda: lm.score_lines(texts),
        "surprisals_of_line": lambda: [lm.surprisals(text) for text in texts],
        "surprisals_of_line_in_batch": lambda: lm.surprisals_batch(texts),
    }
    for name, call in work.items():
        call()  # what all lines share is made when it is first used
        busy = time.process_time()
        call()
        facts[f"{name}_ms"] = 1e3 * (time.process_time() - busy) / len(texts)


def generation_speed(lm: Any) -> float:
    """Tokens per second, documents of at most 100 tokens, one after another."""
    written, seed, began = 0, 0, time.perf_counter()
    while written < GENERATED and time.perf_counter() - began < 20:
        text = lm.generate(max_tokens=100, seed=seed)
        written, seed = written + len(lm.tokenizer_.encode(text)) + 1, seed + 1
    return written / (time.perf_counter() - began)


def machine() -> dict[str, Any]:
    import saffu

    return {"cores": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version(),
            "saffu": saffu.__version__, "date": time.strftime("%Y-%m-%d")}  # fmt: skip


def table(case: str, numbers: dict[str, list[float]]) -> str:
    rows = [f"| {case} | |", "| --- | --- |"]
    for name, values in numbers.items():
        rows.append(f"| {name.replace('_', ' ')} | {' '.join(map(shown, values))} |")
    return "\n".join(rows) + "\n"


def shown(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value < 1 else f"{value:.4g}"


def comparison(cases: dict[str, dict[str, list[Any]]]) -> str:
    """All cases in one table: the best run of each."""
    rows = [f"| | {' | '.join(COMPARED.values())} |", "| --- " * (len(COMPARED) + 1) + "|"]
    for case, numbers in cases.items():
        best = {name: (max if name.endswith("per_s") else min)(values) for name, values in numbers.items()}
        cells = [shown(best[name]) if name in best else "–" for name in COMPARED]
        rows.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
