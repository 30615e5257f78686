"""Layers that start from the paper's theorem, next to other starts: held-out loss as Adam continues from each.

    python benchmarks/layers.py --train babylm-small/train/*.gz --dev babylm-small/dev/*.gz \\
        --out docs/results/layers.json

Five trials: the digits of scikit-learn, in one layer; lines of text by their words in lower case, in one layer, where
the file is the class (left out without files; each of --train has one of --dev, in the same order); and the digits by
512 ReLU features, which are trained with the head. Then the digits as sequences of eight rows, whose pixels sum to one,
for the paper's unit in both modes. Each trial has five seeds, which choose the rows, the first layer, and the batches.

The layer starts from zero (at random above a hidden layer), from the explicit solution as printed
and scaled, and from ridge regression on one-hot targets. Adam continues at two rates; each start keeps the one with the
lower mean loss after 100 steps. Logistic regression and naive Bayes, as scikit-learn sets them, see the same features.

Seconds are of one core; memory is what solving adds to the process at its peak (Linux only). Needs scikit-learn.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import gzip
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import scipy.sparse
import sklearn
import torch
from sklearn.datasets import load_digits
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, log_loss
from sklearn.naive_bayes import MultinomialNB
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from saffu.paper import SAFFU, ExplicitClassifier, solve_head
from saffu.paper.layers import HELD_OUT, fit_scale

STEPS = (0, 25, 100, 400)
CHOICE = 100  # the step after which a start's rate is chosen
BATCH = 256
SEEDS = 5
LINES = 5000  # of each file
TRAINED = 1200  # of the 1,797 digits
HIDDEN = 512
ROWS = 2000  # evaluated at a time
PENALTIES = (0.1, 1.0, 10.0, 100.0)  # of ridge regression


@dataclass
class Text:
    train: list[list[str]]  # the lines of each file
    dev: list[list[str]]


@dataclass
class Data:
    """One seed of a trial: inputs are dense or sparse, `body` makes features of them."""

    train: tuple[Any, np.ndarray]
    dev: tuple[Any, np.ndarray]
    body: nn.Module
    smoothing: float = 0.05
    rates: tuple[float, float] = (1e-3, 1e-2)
    mode: str | None = None  # of the unit, if it is one

    def network(self) -> nn.Module:
        """Return the body and the layer to solve, or a unit, before anything has set it."""
        outputs = int(self.train[1].max()) + 1
        if self.mode:
            return SAFFU(*self.train[0].shape[1:], outputs, self.mode)
        return nn.Sequential(self.body, nn.Linear(HIDDEN if self.has_layers() else self.train[0].shape[1], outputs))

    def has_layers(self) -> bool:
        return not isinstance(self.body, nn.Identity)


def digits(seed: int, hidden: bool = False) -> Data:
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    rows, held_out = order[:TRAINED], order[TRAINED:]
    inputs = (X / 16).astype(np.float32)
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(64, HIDDEN), nn.ReLU()) if hidden else nn.Identity()
    rates = (1e-3, 3e-3) if hidden else (1e-3, 1e-2)
    return Data((inputs[rows], y[rows]), (inputs[held_out], y[held_out]), body, rates=rates)


def rows_of_digits(seed: int, mode: str) -> Data:
    """Empty rows, whose pixels cannot sum to one, are for the unit to coerce."""
    data = digits(seed)
    data.mode = mode
    data.train, data.dev = ((normalized(X.reshape(-1, 8, 8)), y) for X, y in (data.train, data.dev))
    return data


def normalized(X: np.ndarray) -> np.ndarray:
    sums = X.sum(-1, keepdims=True)
    return X / np.where(sums > 0, sums, 1)


def lines_of_text(seed: int, text: Text) -> Data:
    rng = np.random.default_rng(seed)
    words = CountVectorizer(analyzer=lambda line: line.lower().split(), min_df=3, dtype=np.float32)

    def drawn(files: list[list[str]]) -> tuple[list[str], np.ndarray]:
        chosen = [rng.permutation(len(lines))[:LINES] for lines in files]
        labels = np.repeat(np.arange(len(files)), [len(rows) for rows in chosen])
        return [lines[row] for lines, rows in zip(files, chosen, strict=True) for row in rows], labels

    (train, y), (dev, z) = drawn(text.train), drawn(text.dev)
    order = rng.permutation(len(y))
    X = words.fit_transform(train)
    return Data((X[order], y[order]), (words.transform(dev), z), nn.Identity(), smoothing=0.5)


def dense(X: Any) -> Tensor:
    return torch.from_numpy(X.toarray() if scipy.sparse.issparse(X) else X)


def features_of(data: Data, X: Any) -> Any:
    """What the layer to solve is given, for scikit-learn."""
    if not data.has_layers():
        return X.reshape(len(X), -1) if data.mode else X
    with torch.no_grad():
        return data.body(dense(X)).numpy()


# What a layer starts from: functions that set it.


def set_nothing(network: nn.Module, data: Data) -> None:
    if not data.mode and not data.has_layers():
        nn.init.zeros_(network[-1].weight)
        nn.init.zeros_(network[-1].bias)


def set_explicit(network: nn.Module, data: Data, scale: float | str = 1.0) -> None:
    X, y = data.train
    if data.has_layers():
        features = torch.from_numpy(features_of(data, X))
        solve_head(network[-1], features, torch.from_numpy(y), scale=scale, smoothing=data.smoothing)
    else:
        layer = ExplicitClassifier(scale=scale, smoothing=data.smoothing).fit(X, y)
        put(network[-1], layer.scale_ * layer.weights_.T, np.zeros(len(layer.classes_)))


def set_ridge(network: nn.Module, data: Data) -> None:
    """Ridge regression of one-hot targets; its scale and penalty, too, are fitted on a fifth of the rows."""
    X, y = features_of(data, data.train[0]), data.train[1]
    Y = np.eye(network[-1].out_features, dtype=np.float32)[y]
    held = np.arange(len(y)) % HELD_OUT == HELD_OUT - 1
    wanted = torch.from_numpy(Y[held])
    found = []
    for penalty in PENALTIES:
        scores = torch.from_numpy(Ridge(alpha=penalty).fit(X[~held], Y[~held]).predict(X[held]))
        scale = fit_scale(scores, wanted)
        found.append((float(cross_entropy(scale * scores, wanted)), scale, penalty))
    _, scale, penalty = min(found)
    layer = Ridge(alpha=penalty).fit(X, Y)
    put(network[-1], scale * layer.coef_, scale * layer.intercept_)


def put(head: nn.Linear, weights: np.ndarray, bias: np.ndarray) -> None:
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(weights))
        head.bias.copy_(torch.from_numpy(bias))


def set_unit(network: nn.Module, data: Data, **settings: Any) -> None:
    X, y = data.train
    network.solve(torch.from_numpy(X), torch.from_numpy(y), smoothing=data.smoothing, **settings)


Start = Callable[[nn.Module, Data], None]
STARTS: dict[str, Start] = {
    "other": set_nothing,
    "explicit": set_explicit,
    "scaled": partial(set_explicit, scale="fitted"),
    "ridge": set_ridge,
}
STARTS_OF_UNITS: dict[str, Start] = {
    "other": set_nothing,
    "uniform": partial(set_unit, scale="fitted", rounds=0),
    "explicit": set_unit,
    "scaled": partial(set_unit, scale="fitted"),
}
OUTSIDERS: dict[str, Callable[[], Any]] = {
    "logistic regression": lambda: LogisticRegression(max_iter=1000),
    "MultinomialNB": MultinomialNB,
}


def measured(work: Callable[[], Any]) -> dict[str, float]:
    """Seconds of one core, and MB that the process grew by at most meanwhile."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # give back what is free, and forget the peak so far
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    begin = time.process_time()
    work()
    return {"seconds": time.process_time() - begin, "memory_mb": max(0.0, memory("VmHWM") - before) / 1e3}


def memory(name: str) -> float:
    """kB of this process, as the system states them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))


def evaluate(network: nn.Module, X: Any, y: np.ndarray) -> tuple[float, float]:
    """Mean loss in nats, and accuracy."""
    with torch.no_grad():
        logits = torch.cat([network(dense(X[i : i + ROWS])) for i in range(0, len(y), ROWS)])
    targets = torch.from_numpy(y)
    return float(cross_entropy(logits, targets)), float((logits.argmax(1) == targets).float().mean())


def curve(network: nn.Module, data: Data, rate: float, seed: int) -> dict[int, float]:
    """Held-out loss after some steps of Adam, which see the same batches whatever they start from."""
    network = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    rng = np.random.default_rng(seed)
    X, y = data.train
    losses = {}
    for step in range(STEPS[-1] + 1):
        if step in STEPS:
            losses[step] = evaluate(network, *data.dev)[0]
        rows = rng.choice(len(y), BATCH, replace=False)
        optimizer.zero_grad()
        cross_entropy(network(dense(X[rows])), torch.from_numpy(y[rows])).backward()
        optimizer.step()
    return losses


def run_seed(data: Data, seed: int) -> dict[str, dict[str, Any]]:
    """One row for each start and each outsider."""
    rows: dict[str, dict[str, Any]] = {}
    for name, start in (STARTS_OF_UNITS if data.mode else STARTS).items():
        torch.manual_seed(seed)
        network = data.network()
        row: dict[str, Any] = measured(partial(start, network, data))
        row["accuracy"] = evaluate(network, *data.dev)[1]
        begin = time.process_time()
        row["losses"] = {rate: curve(network, data, rate, seed) for rate in data.rates}
        row["seconds_of_training"] = (time.process_time() - begin) / len(data.rates)
        rows[name] = row
    X, Z = (features_of(data, part[0]) for part in (data.train, data.dev))
    for name, make in OUTSIDERS.items():
        model = make()
        row = measured(partial(model.fit, X, data.train[1]))
        p = model.predict_proba(Z)
        rows[name] = row | {"loss": log_loss(data.dev[1], p), "accuracy": accuracy_score(data.dev[1], p.argmax(1))}
    return rows


def summary(seeds: Sequence[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Means over the seeds, with standard deviations of losses, at the rate that each start keeps."""
    found: dict[str, Any] = {}
    for name in seeds[0]:
        rows = [seed[name] for seed in seeds]
        facts = {key: mean(row[key] for row in rows) for key in rows[0] if isinstance(rows[0][key], float)}
        if name not in OUTSIDERS:
            rate = min(rows[0]["losses"], key=lambda rate: mean(row["losses"][rate][CHOICE] for row in rows))
            facts["rate"] = rate
            facts["steps"] = {step: spread([row["losses"][rate][step] for row in rows]) for step in STEPS}
        else:
            facts["loss"] = spread([row["loss"] for row in rows])
        found[name] = facts
    return found


def spread(values: list[float]) -> dict[str, Any]:
    return {"mean": mean(values), "deviation": stdev(values), "seeds": values}


def read_text(path: Path) -> list[str]:
    """The lines of three words or more of a file."""
    content = path.read_bytes()
    content = gzip.decompress(content) if path.suffix == ".gz" else content
    return [line for line in content.decode().splitlines() if len(line.split()) >= 3]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--train", nargs="*", type=Path, default=[], metavar="FILE")
    parser.add_argument("--dev", nargs="*", type=Path, default=[], metavar="FILE")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the results as JSON")
    options = parser.parse_args()
    trials: dict[str, Callable[[int], Data]] = {
        "digits": digits,
        "hidden": partial(digits, hidden=True),
        "sum": partial(rows_of_digits, mode="sum"),
        "cat": partial(rows_of_digits, mode="cat"),
    }
    if options.train:
        text = Text(*([read_text(path) for path in paths] for paths in (options.train, options.dev)))
        trials["lines"] = partial(lines_of_text, text=text)
    torch.set_num_threads(1)
    versions = {"python": platform.python_version(), "torch": torch.__version__, "sklearn": sklearn.__version__}
    results: dict[str, Any] = {"machine": {"cores": os.cpu_count(), "platform": platform.platform()} | versions}
    for name, make in trials.items():
        with threadpool_limits(1):
            data = make(0)
            seeds = [run_seed(make(seed), seed) for seed in range(options.seeds)]
        features = features_of(data, data.train[0]).shape[1]
        sizes = {"train": len(data.train[1]), "dev": len(data.dev[1]), "features": features}
        results[name] = {"sizes": sizes, "methods": summary(seeds)}
        for method, row in results[name]["methods"].items():
            losses = row["steps"].values() if "steps" in row else [row["loss"]]
            shown = " ".join(f"{loss['mean']:.3f} ± {loss['deviation']:.3f}" for loss in losses)
            print(f"{name:8} {method:20} {shown}  accuracy {row['accuracy']:.3f}  {row['seconds']:.2f} s", flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
