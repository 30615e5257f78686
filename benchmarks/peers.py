"""Peers in `make bench`, on the same text and tokens: KenLM and a small GPT-2, each in a process of its own."""

from __future__ import annotations

import math
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from saffu.text.corpus import TokenCorpus
from saffu.text.tokenizer import EOD, SOD, Tokenizer

ORDER = 5
GPT_PARAMETERS = 5_000_000
WRITTEN = 2_000  # tokens that the GPT-2 generates
LOAD_KENLM = "import sys, kenlm; print(kenlm.Model(sys.argv[1]).score(sys.argv[2]))"
LOAD_GPT = """
import sys, torch, transformers
model = transformers.GPT2LMHeadModel.from_pretrained(sys.argv[1])
print(float(model(torch.tensor([[int(token) for token in sys.argv[2].split()]])).logits.sum()))
"""


def measure_kenlm(corpus: TokenCorpus, dev: TokenCorpus, tokenizer: Tokenizer, scratch: Path) -> dict[str, Any]:
    """KenLM on lines of tokens: estimated by `lmplz` if it is installed, else from the ARPA file that saffu writes."""
    import kenlm

    facts: dict[str, Any] = {"tokens": corpus.targets, "vocabulary": len(tokenizer)}
    arpa, binary, text, held_out = (scratch / name for name in ("model.arpa", "model.bin", "train.txt", "dev.txt"))
    lines = write_lines(corpus, dev, tokenizer, text, held_out)
    before = time.perf_counter()
    if shutil.which("lmplz"):
        lmplz = ["lmplz", "-o", str(ORDER), "-S", "50%", "--discount_fallback"]
        subprocess.run([*lmplz, "--text", str(text), "--arpa", str(arpa)], check=True, capture_output=True)
        facts["fit_s"], facts["estimated_by"] = time.perf_counter() - before, "lmplz"
    else:
        from saffu.calibrated.ngrams import NgramCounts
        from saffu.tools.arpa import write_arpa

        write_arpa(NgramCounts.count(corpus, ORDER, len(tokenizer)), tokenizer, arpa)
        facts["fit_s"], facts["estimated_by"] = time.perf_counter() - before, "saffu export"
    facts["fit_peak_memory_mb"] = peak_memory()
    stored = arpa
    if shutil.which("build_binary"):
        subprocess.run(["build_binary", str(arpa), str(binary)], check=True, capture_output=True)
        stored = binary
    model = kenlm.Model(str(stored))
    began, busy = time.perf_counter(), time.process_time()
    log10_p = sum(model.score(line) for line in lines)
    facts["score_tokens_per_s"] = dev.targets / (time.perf_counter() - began)
    facts["score_tokens_per_core_s"] = dev.targets / (time.process_time() - busy)
    facts["bits_per_byte"] = -log10_p / math.log10(2) / dev.bytes
    if shutil.which("query"):
        began = time.perf_counter()
        with held_out.open() as source:
            subprocess.run(["query", "-v", "summary", str(stored)], stdin=source, check=True, capture_output=True)
        facts["query_tokens_per_s"] = dev.targets / (time.perf_counter() - began)  # loading included
    facts["folder_mb"] = stored.stat().st_size / 1e6
    facts["load_and_score_a_line_s"] = seconds([sys.executable, "-c", LOAD_KENLM, str(stored), lines[0]])
    return facts


def write_lines(corpus: TokenCorpus, dev: TokenCorpus, tokenizer: Tokenizer, text: Path, held_out: Path) -> list[str]:
    """Both corpora as files of lines of token names; returns the lines of the second."""
    from saffu.tools.arpa import token_names

    names = token_names(tokenizer)
    found: list[str] = []
    for part, path in ((corpus, text), (dev, held_out)):
        bounds = part.line_starts().tolist()
        found = [" ".join(names[token] for token in part.ids[lo : hi - 1].tolist()) for lo, hi in pairwise(bounds)]
        path.write_text("".join(f"{line}\n" for line in found), encoding="utf-8")
    return found


def measure_gpt(
    corpus: TokenCorpus, dev: TokenCorpus, tokenizer: Tokenizer, scratch: Path, train_s: float
) -> dict[str, Any]:
    """A GPT-2 of five million parameters, trained on the CPU for a given time."""
    import gpt2_baseline
    import torch

    vocabulary = len(tokenizer)
    model, facts = gpt2_baseline.trained(corpus, vocabulary, GPT_PARAMETERS, train_s)
    facts = {"tokens": corpus.targets, "vocabulary": vocabulary, "fit_s": facts.pop("seconds")} | facts
    facts["fit_peak_memory_mb"] = peak_memory()
    began = time.perf_counter()
    score = gpt2_baseline.evaluate(model, dev, torch.device("cpu"))
    facts["score_tokens_per_s"] = dev.targets / (time.perf_counter() - began)
    facts["bits_per_byte"] = score.bits_per_byte
    facts["generate_tokens_per_s"] = gpt_generation(model)
    model.save_pretrained(scratch / "gpt")
    facts["folder_mb"] = sum(file.stat().st_size for file in (scratch / "gpt").iterdir()) / 1e6
    line = " ".join(str(token) for token in np.append(SOD, dev.ids[: min(20, dev.targets)]))
    facts["load_and_score_a_line_s"] = seconds([sys.executable, "-c", LOAD_GPT, str(scratch / "gpt"), line])
    return facts


def gpt_generation(model: Any) -> float:
    """Tokens per second, documents of at most 100 tokens, one after another, sampled with cached keys and values."""
    import torch

    torch.manual_seed(0)
    written, began = 0, time.perf_counter()
    while written < WRITTEN and time.perf_counter() - began < 20:
        options: dict[str, Any] = {"do_sample": True, "max_new_tokens": 100, "top_k": 0, "eos_token_id": EOD}
        start = torch.tensor([[SOD]])
        found = model.generate(start, attention_mask=torch.ones_like(start), pad_token_id=EOD, **options)
        written += found.shape[1] - 1
    return written / (time.perf_counter() - began)


def peak_memory() -> float:
    """Of this process, or of the largest it has started, in megabytes."""
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1e3


def seconds(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


PEERS: dict[str, Callable[..., dict[str, Any]]] = {"kenlm": measure_kenlm, "gpt2": measure_gpt}
