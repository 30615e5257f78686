"""Filtering and data selection next to KenLM and a bag-of-n-grams classifier: AUC, and seconds of CPU.

    python benchmarks/filtering.py --out docs/results/filtering.json
    python benchmarks/filtering.py --only speed --out docs/results/filtering.json    # keeps the other results
    python benchmarks/filtering.py --only second --good good/*.txt.gz --code /usr/include \
        --catalogs /usr/share/locale/fr/LC_MESSAGES --seed 1 --out docs/results/filtering.json

The script makes its text from what is installed: English and code from Python's own library, German from the message
catalogs of the system (left out where there are none), and garbage, word salad, repetitions, and keyword spam made by
itself. The second set for filtering is of other text, which has to be given, and of bad lines that are made in other
ways; no setting of saffu was chosen on it. Needs kenlm and scikit-learn.

Filtering: a model of good English; which lines of a crawl are good? Selection: a model of a sample of one domain
(networking); which lines of the crawl, all of it English, are of that domain? KenLM reads the 5-gram model of the same
tokens that saffu exports, so the two differ in the model alone. The classifier (character n-grams, logistic
regression) is trained on the same sample as positive examples and on a sample of the crawl as negative ones.
"""

from __future__ import annotations

import argparse
import ast
import base64
import gettext
import gzip
import json
import random
import re
import resource
import string
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import kenlm
import numpy as np
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from saffu import SaffuLM
from saffu.text.default_corpus import default_corpus
from saffu.tools.arpa import token_names, write_arpa

NETWORKING = "asyncio email http urllib xmlrpc wsgiref socket ssl ftplib smtplib imaplib poplib socketserver selectors"
TASKS = ("filtering", "selection", "speed")  # unless one is named
CATALOGS = Path("/usr/share/locale/de/LC_MESSAGES")
GOOD_LINES = 10_752  # of the second set, as many as the first one has
Scores = dict[str, tuple[list[float], float]]  # by method: a score of each line, and seconds of CPU


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=(*TASKS, "second"), help="measure only this")
    parser.add_argument("--good", type=Path, nargs="+", metavar="FILE", help="good text of the second set, by line")
    parser.add_argument("--code", type=Path, metavar="DIR", help="folder with source code (.h) of the second set")
    parser.add_argument("--catalogs", type=Path, metavar="DIR", help="folder with catalogs (.mo) of the second set")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    tasks: dict[str, Callable[[random.Random], dict[str, Any]]] = {
        "filtering": filtering,
        "selection": selection,
        "speed": speed,
        "second": lambda rng: second_filtering(rng, options.good, options.code, options.catalogs),
    }
    results = {name: tasks[name](rng) for name in ([options.only] if options.only else TASKS)}
    for task, rows in results.items():
        if task == "speed":
            print(f"\nspeed: {rows}")
            continue
        print(f"\n{task}: {rows['lines']:,} lines")
        for method, row in list(rows.items())[1:]:
            kinds = "  ".join(f"{kind} {auc:.3f}" for kind, auc in row.get("by_kind", {}).items())
            print(f"{method:44} AUC {row['auc']:.3f}  {row['seconds']:6.2f} s  {kinds}")
    if options.out:
        others = json.loads(options.out.read_text()) if options.only and options.out.exists() else {}
        options.out.write_text(json.dumps(others | results, indent=1) + "\n")


def filtering(rng: random.Random) -> dict[str, Any]:
    """Good English among code, garbage, German, word salad, repetitions, and keyword spam."""
    english = list(default_corpus())
    rng.shuffle(english)
    train, good = halves(english)
    bad = {
        "code": code_lines(rng, 1000),
        "garbage": [garbage(rng) for _ in range(1000)],
        "salad": [salad(rng, line) for line in good[:1000]],
        "repetition": [" ".join([" ".join(line.split()[:6])] * rng.randint(4, 9)) for line in good[1000:2000]],
        "spam": [spam(rng, good) for _ in range(1000)],
        "german": messages(rng, CATALOGS, 1000),
    }
    return measured(rng, train, good, bad)


def second_filtering(rng: random.Random, files: Sequence[Path], code: Path, catalogs: Path) -> dict[str, Any]:
    """The same task with other text, and with bad lines that are made in other ways."""
    english = [line for path in files for line in text_lines(path) if len(line) >= 40]
    train, good = halves(rng.sample(english, GOOD_LINES))
    sources = [line for path in sorted(code.rglob("*.h")) for line in text_lines(path) if len(line.strip()) > 30]
    bad = {
        "code": rng.sample(sources, 1000),
        "garbage": [other_garbage(rng, line) for line in good[:1000]],
        "salad": [" ".join(reversed(line.split())) for line in good[1000:2000]],
        "repetition": [other_repetition(rng, line) for line in good[2000:3000]],
        "spam": [other_spam(rng, good) for _ in range(1000)],
        "language": messages(rng, catalogs, 1000),
    }
    return measured(rng, train, good, bad)


def halves(lines: list[str]) -> tuple[list[str], list[str]]:
    return lines[: len(lines) // 2], lines[len(lines) // 2 :]


def measured(rng: random.Random, train: list[str], good: list[str], bad: dict[str, list[str]]) -> dict[str, Any]:
    """How well each method that knows `train` tells good lines from each kind of bad ones."""
    lines = good + [line for kind in bad.values() for line in kind]
    is_good = np.array([True] * len(good) + [False] * (len(lines) - len(good)))
    unlabeled = rng.sample(lines, len(lines) // 4)  # what a classifier takes for bad: the crawl itself
    scores = model_scores({"": train}, lines) | classifier_scores(train, unlabeled, lines)
    rows: dict[str, Any] = {"lines": len(lines)}
    for method, (values, seconds) in scores.items():
        begin, by_kind = len(good), {}
        for kind, texts in bad.items():
            if texts:
                chosen = np.r_[0 : len(good), begin : begin + len(texts)]
                by_kind[kind] = float(roc_auc_score(is_good[chosen], np.array(values)[chosen]))
            begin += len(texts)
        rows[method] = {"auc": float(roc_auc_score(is_good, values)), "seconds": seconds, "by_kind": by_kind}
    return rows


def selection(rng: random.Random) -> dict[str, Any]:
    """Paragraphs about networking among all paragraphs of Python's library."""
    domain, others = library_paragraphs()
    for paragraphs in (domain, others):
        rng.shuffle(paragraphs)
    sample, target = domain[: len(domain) // 2], domain[len(domain) // 2 :]
    lines = target + others
    is_target = [True] * len(target) + [False] * len(others)
    crawl = rng.sample(lines, len(sample))
    unrelated = code_lines(rng, 2000)
    scores = model_scores({"": sample}, lines)
    scores |= model_scores({"against unrelated text": unrelated}, lines, sample)
    scores |= model_scores({"against a sample of the crawl": crawl}, lines, sample)
    scores |= classifier_scores(sample, crawl, lines)
    rows: dict[str, Any] = {"lines": len(lines)}
    for method, (values, seconds) in scores.items():
        rows[method] = {"auc": float(roc_auc_score(is_target, values)), "seconds": seconds}
    return rows


def speed(rng: random.Random) -> dict[str, Any]:
    """CPU seconds of whole commands, from reading the model to writing the scores of 30,000 lines of code."""
    lines = code_lines(rng, 40_000)
    scored = lines[:30_000]
    lm = SaffuLM().fit([*default_corpus(), *lines[30_000:]])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        lm.save(path / "model")
        write_arpa(lm.references_, lm.tokenizer_, path / "model.arpa", 5)
        (path / "lines.txt").write_text("\n".join(scored) + "\n")
        script = "import kenlm; from tokenizers import Tokenizer; "
        script += "read, model = Tokenizer.from_file('model/tokenizer.json'), kenlm.Model('model.arpa'); "
        load = cpu_seconds([sys.executable, "-c", script], path)
        script += "lines = open('lines.txt').read().splitlines(); "
        script += "print(*[model.score(' '.join(text.tokens)) for text in read.encode_batch(lines)], sep='\\n')"
        return {
            "lines": len(scored),
            "tokens": lm.tokenize(scored).targets,
            "saffu_score": cpu_seconds([sys.executable, "-m", "saffu", "score", "model", "lines.txt"], path),
            "saffu_info": cpu_seconds([sys.executable, "-m", "saffu", "info", "model"], path),
            "kenlm": cpu_seconds([sys.executable, "-c", script], path),
            "kenlm_load": load,
        }


def cpu_seconds(command: Sequence[str], folder: Path) -> float:
    """User and system time of a command, the best of three runs."""

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    times = []
    for _ in range(3):
        begin = spent()
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        times.append(spent() - begin)
    return min(times)


def model_scores(trained: dict[str, list[str]], lines: Sequence[str], sample: list[str] | None = None) -> Scores:
    """Scores by models of one text: minus bits per byte or, with a `sample`, its log-ratio against that text."""
    ((name, text),) = trained.items()
    lm, domain = SaffuLM().fit(text), SaffuLM().fit(sample) if sample else None
    methods: dict[str, Callable[[SaffuLM], Callable[[Sequence[str]], list[float]]]] = {
        "saffu": lambda lm: lambda lines: per_byte(lm, lines),
        "saffu --memory": lambda lm: lambda lines: per_byte(lm, lines, memory=True),
        "saffu --repetition": lambda lm: lambda lines: without_repetition(lm, lines),
        "KenLM": kenlm_scorer,
    }
    scores: Scores = {}
    for method, scorer in methods.items():
        score, score_domain = scorer(lm), scorer(domain) if domain else None
        begin = time.process_time()
        values = score(lines)
        if score_domain:
            values = [ours - other for ours, other in zip(score_domain(lines), values, strict=True)]
        scores[f"{method} {name}".strip()] = values, time.process_time() - begin
    return scores


def per_byte(lm: SaffuLM, lines: Sequence[str], memory: bool = False) -> list[float]:
    """Minus bits per byte of each line."""
    return [-score.bits_per_byte for score in lm.score_lines(lines, memory)]


def without_repetition(lm: SaffuLM, lines: Sequence[str]) -> list[float]:
    """Minus the cost of each line: bits per byte, plus what memory of the line itself saves."""
    plain, eased = per_byte(lm, lines), per_byte(lm, lines, memory=True)
    return [2 * bits - easier for bits, easier in zip(plain, eased, strict=True)]


def kenlm_scorer(lm: SaffuLM) -> Callable[[Sequence[str]], list[float]]:
    """Scores by the 5-gram model of the same tokens, in KenLM."""
    assert lm.references_ is not None
    tokenizer, names = lm.tokenizer_, token_names(lm.tokenizer_)
    with tempfile.TemporaryDirectory() as folder:
        write_arpa(lm.references_, tokenizer, Path(folder) / "model.arpa", 5)
        model = kenlm.Model(str(Path(folder) / "model.arpa"))

    def score(lines: Sequence[str]) -> list[float]:
        encoded = tokenizer.encode_batch(list(lines))
        sizes = [len(line.encode()) + 1 for line in lines]
        texts = [" ".join([names[token] for token in ids]) for ids in encoded]
        return [model.score(text) * 3.3219 / size for text, size in zip(texts, sizes, strict=True)]

    return score


def classifier_scores(positive: Sequence[str], negative: Sequence[str], lines: Sequence[str]) -> Scores:
    """A linear classifier of hashed character n-grams."""
    vectors = HashingVectorizer(analyzer="char_wb", ngram_range=(1, 4), n_features=1 << 18)
    labels = [1] * len(positive) + [0] * len(negative)
    classifier = LogisticRegression(C=10, max_iter=200).fit(vectors.transform([*positive, *negative]), labels)
    begin = time.process_time()
    values = classifier.decision_function(vectors.transform(lines)).tolist()
    return {"classifier of character n-grams": (values, time.process_time() - begin)}


def library_paragraphs() -> tuple[list[str], list[str]]:
    """Paragraphs of the docstrings of Python's library: of networking modules, and of all others; each once."""
    library, seen = Path(sysconfig.get_paths()["stdlib"]), set()
    parts: tuple[list[str], list[str]] = [], []
    for name in sorted(sys.stdlib_module_names - {"test", "idlelib", "pydoc_data"}):
        for path in [library / f"{name}.py", *sorted((library / name).rglob("*.py"))]:
            for paragraph in docstring_paragraphs(path) if path.exists() and "test" not in path.parts else ():
                if paragraph not in seen:
                    seen.add(paragraph)
                    parts[name not in NETWORKING.split()].append(paragraph)
    return parts


def docstring_paragraphs(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text("utf-8", "replace"))
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                joined = " ".join(paragraph.split())
                if len(joined) >= 40 and not joined.startswith((">>>", "...")):
                    yield joined


def code_lines(rng: random.Random, number: int) -> list[str]:
    library = Path(sysconfig.get_paths()["stdlib"])
    lines = [line for path in sorted(library.glob("*.py")) for line in path.read_text("utf-8", "replace").splitlines()]
    return rng.sample([line for line in lines if len(line.strip()) > 30 and not line.strip().startswith("#")], number)


def text_lines(path: Path) -> list[str]:
    """The lines of a file, plain or compressed."""
    with gzip.open(path, "rt", errors="replace") if path.suffix == ".gz" else path.open(errors="replace") as file:
        return [line.rstrip("\n") for line in file]


def messages(rng: random.Random, catalogs: Path, number: int) -> list[str]:
    """Messages of programs, without their placeholders; none where no catalogs are installed."""
    texts: set[str] = set()
    for path in sorted(catalogs.glob("*.mo")) if catalogs.is_dir() else ():
        with path.open("rb") as file, suppress(UnicodeDecodeError):
            translations = gettext.GNUTranslations(file)._catalog.values()  # type: ignore[attr-defined]
            texts |= {" ".join(re.sub(r"%\S+", "", str(text)).split()) for text in translations}
    long = sorted(text for text in texts if 60 <= len(text) <= 300)
    return rng.sample(long, min(number, len(long)))


def garbage(rng: random.Random) -> str:
    """Random characters, base64, or English read in the wrong encoding."""
    if rng.random() < 0.3:
        return base64.b64encode(rng.randbytes(rng.randint(20, 80))).decode()
    letters = rng.choice(
        [string.printable[:94], string.ascii_lowercase + " " * 5, "Ã¤Â©â€™¼ÐŸ " + string.ascii_letters]
    )
    return "".join(rng.choices(letters, k=rng.randint(30, 150)))


def salad(rng: random.Random, line: str) -> str:
    words = line.split()
    rng.shuffle(words)
    return " ".join(words)


def spam(rng: random.Random, texts: Sequence[str]) -> str:
    """A few keywords again and again, in changing order."""
    keywords = rng.sample([word for line in rng.sample(texts, 5) for word in line.lower().split()], 5)
    return " ".join(rng.choices(keywords, k=rng.randint(15, 40)))


def other_garbage(rng: random.Random, line: str) -> str:
    """A number in hexadecimal, a line without its vowels or its spaces, or one escaped as in addresses."""
    kind = rng.randrange(4)
    if kind == 0:
        return rng.randbytes(rng.randint(15, 60)).hex(rng.choice("-: "), rng.choice([1, 2, 4]))
    if kind == 1:
        return re.sub("[aeiouAEIOU]", "", line)
    return re.sub(r"\s", "", line) if kind == 2 else quote(line, safe="")


def other_repetition(rng: random.Random, line: str) -> str:
    """One word again and again, or a clause with a running number."""
    words = line.split()
    if rng.random() < 0.5:
        return " ".join([rng.choice(words)] * rng.randint(10, 40))
    clause = " ".join(words[: rng.randint(3, 10)])
    return "; ".join(f"{number}. {clause}" for number in range(1, rng.randint(4, 9)))


def other_spam(rng: random.Random, texts: Sequence[str]) -> str:
    """Phrases of two or three words with prices and calls to buy, some of them several times."""
    phrases = []
    for line in rng.sample(texts, 6):
        words = line.split()
        begin = rng.randrange(max(1, len(words) - 3))
        phrases.append(" ".join(words[begin : begin + rng.randint(2, 3)]).strip(".,;"))
    calls = ["buy now", "best price", "free shipping", "click here", "50% off", "order today", "$9.99"]
    return ", ".join(rng.choice(phrases + calls) for _ in range(rng.randint(10, 25)))


if __name__ == "__main__":
    main()
