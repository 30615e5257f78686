"""How fast a trained model predicts on this machine: our kernels, in float32 and int8, torch, and ONNX Runtime.

    python benchmarks/inference.py MODEL --dev FILES [--targets 15000] [--workers 32] [--out RESULTS.json]

MODEL is a folder with a trained network. Networks alone are compared, on the same rows of text, in the same run, with
as many threads as there are cores; generation includes the counts. Where ONNX Runtime is installed, it runs a GPT of
the same layers, width, heads, and vocabulary, with a key–value cache, without our gates and distance biases. A busy
machine is one on which twice as many other processes as there are cores never rest.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import saffu
from saffu import SaffuLM, Sampling
from saffu.companion.rows import ages_of, gate_inputs, inputs_of, scoring_rows
from saffu.interface import Array
from saffu.text.documents import read_records
from saffu.text.sources import find_files
from saffu.tools.generate import generate_tokens
from saffu.workers import cores

GENERATED = 300
LINE = "the old man went down to the sea ."
BEGUN = "the old man went down to the s"
ROWS = 16  # that ONNX Runtime scores at a time


def rate(work: Callable[[], Any], number: int, times: int = 3) -> dict[str, float]:
    """The best number per second of wall time, and per second of one core."""
    walls, processor = [], []
    for _ in range(times):
        begin, begun = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - begin)
        processor.append(time.process_time() - begun)
    return {"per_s": number / min(walls), "per_core_s": number / min(processor)}


def scoring(lm: SaffuLM, text: list[str], targets: int) -> dict[str, Any]:
    """Targets per second by each way to score, and how far they are apart."""
    corpus = lm.tokenize(text)
    share = min(1.0, targets / corpus.targets)
    corpus = lm.tokenize([document[: max(1, int(len(document) * share))] for document in text])
    model = lm.model_
    counted, certainty = model.counted.log_probabilities_and_certainty(corpus)
    seen = gate_inputs(certainty, ages_of(corpus))
    rounded = model.networks.rounded()
    results: dict[str, Any] = {"targets": corpus.targets}
    results["float32"] = rate(lambda: model.networks.score(corpus, counted, seen), corpus.targets)
    results["int8"] = rate(lambda: rounded.score(corpus, counted, seen), corpus.targets)
    exact, near = (side.score(corpus, counted, seen) for side in (model.networks, rounded))
    nats_per_byte = [-scores.mixture.sum() / corpus.sizes.sum() for scores in (exact, near)]
    results["bits_per_byte"] = nats_per_byte[0] / np.log(2)
    results["int8_added_bits_per_byte"] = (nats_per_byte[1] - nats_per_byte[0]) / np.log(2)
    try:
        from saffu.companion.torch_networks import score_on_device
    except ImportError:
        return results
    results["torch"] = rate(lambda: score_on_device(model, corpus, counted, seen, None), corpus.targets, 2)
    in_torch = score_on_device(model, corpus, counted, seen, None)
    results["largest_difference_to_torch"] = float(np.abs(in_torch.mixture - exact.mixture).max())
    gpt = onnx_gpt(model.networks.weights[0])
    if gpt is not None:
        positions, _ = scoring_rows(corpus, model.config.context)
        inputs = inputs_of(corpus)[np.maximum(positions, 0)]
        wanted = np.maximum(corpus.ids[np.maximum(positions, 0)].astype(np.int64), 3)
        results["onnx_runtime"] = rate(lambda: gpt.score(inputs, wanted), corpus.targets, 2)
    return results


def generation(lm: SaffuLM) -> dict[str, Any]:
    """Tokens per second of one text, and of ONNX Runtime's GPT alone."""
    results: dict[str, Any] = {}
    rounded = lm.model_.with_int8_weights()
    for name, model in (("float32", lm.model_), ("int8", rounded)):
        for kind, settings in (("plain", {}), ("temperature_0.8", {"temperature": 0.8})):
            sampling = Sampling(max_tokens=GENERATED, seed=1, **settings)
            work = lambda model=model, sampling=sampling: list(generate_tokens(model, [[]], sampling, lines=10**6))  # noqa: E731
            results[f"{name}_{kind}"] = rate(work, GENERATED)
    gpt = onnx_gpt(lm.model_.networks.weights[0])
    if gpt is not None:
        results["onnx_runtime"] = rate(lambda: gpt.generate(GENERATED), GENERATED, 2)
    return results


class OnnxGpt:
    """A GPT in ONNX Runtime with the matrices of a network: RMSNorm, attention, squared ReLU, and one softmax."""

    def __init__(self, weights: Any) -> None:
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper

        weights = weights.restored()
        self.layers, self.heads, self.vocabulary = weights.layers, weights.width // 64, len(weights.embedding)
        width, nodes, constants = weights.width, [], []

        def constant(name: str, array: Array) -> str:
            constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
            return name

        def node(kind: str, inputs: list[str], output: str, **options: Any) -> str:
            nodes.append(helper.make_node(kind, inputs, output.split(), **options))
            return output.split()[0]

        ones = constant("ones", np.ones(width, dtype=np.float32))
        x = node("Gather", [constant("embedding", weights.embedding), "tokens"], "x")
        for layer in range(self.layers):
            normal = node("SimplifiedLayerNormalization", [x, ones], f"normal{layer}", axis=-1, epsilon=1.2e-7)
            maps = [constant(f"map{layer}{i}", weights.attention[layer, i].T) for i in range(4)]
            parts = [node("MatMul", [normal, maps[i]], f"part{layer}{i}") for i in range(3)]
            past = [f"past_key{layer}", f"past_value{layer}"]
            read = node(
                "MultiHeadAttention", [*parts, "", "", "", *past], f"read{layer} key{layer} value{layer}",
                domain="com.microsoft", num_heads=self.heads, unidirectional=1,
            )  # fmt: skip
            x = node("Add", [x, node("MatMul", [read, maps[3]], f"mapped{layer}")], f"middle{layer}")
            normal = node("SimplifiedLayerNormalization", [x, ones], f"second{layer}", axis=-1, epsilon=1.2e-7)
            up, down = weights.mlp[layer]
            inner = node("Relu", [node("MatMul", [normal, constant(f"up{layer}", up.T)], f"rise{layer}")], f"r{layer}")
            inner = node("Mul", [inner, inner], f"square{layer}")
            fall = node("MatMul", [inner, constant(f"down{layer}", down)], f"fall{layer}")
            x = node("Add", [x, fall], f"after{layer}")
        state = node("SimplifiedLayerNormalization", [x, ones], "state", axis=-1, epsilon=1.2e-7)
        mapped = node("MatMul", [state, constant("output_map", weights.output_map)], "mapped")
        logits = node("MatMul", [mapped, constant("output", weights.embedding.T)], "logits")
        all_p = node("LogSoftmax", [logits], "log_p", axis=-1)
        node("GatherElements", [all_p, "targets"], "scores", axis=2)
        cache = [f"{kind}{layer}" for layer in range(self.layers) for kind in ("key", "value")]
        shape = ["rows", self.heads, "past", 64]
        graph = helper.make_graph(
            nodes, "gpt",
            [
                helper.make_tensor_value_info("tokens", TensorProto.INT64, ["rows", "length"]),
                helper.make_tensor_value_info("targets", TensorProto.INT64, ["rows", "length", 1]),
                *(helper.make_tensor_value_info(f"past_{name}", TensorProto.FLOAT, shape) for name in cache),
            ],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("scores", "log_p", *cache)],
            constants,
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = cores()
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        self.cache = cache

    def empty(self, rows: int) -> dict[str, Array]:
        return {f"past_{name}": np.zeros((rows, self.heads, 0, 64), dtype=np.float32) for name in self.cache}

    def score(self, inputs: Array, targets: Array) -> None:
        for first in range(0, len(inputs), ROWS):
            part = inputs[first : first + ROWS]
            wanted = targets[first : first + ROWS, :, None]
            self.session.run(["scores"], {"tokens": part, "targets": wanted} | self.empty(len(part)))

    def generate(self, number: int) -> None:
        """Tokens one after the other, in windows that begin anew after 256."""
        rng, token, past = np.random.default_rng(0), 3, self.empty(1)
        for place in range(number):
            if place % 256 == 0:
                past = self.empty(1)
            given = np.array([[token]])
            log_p, *kept = self.session.run(
                ["log_p", *self.cache], {"tokens": given, "targets": given[..., None]} | past
            )
            past = {f"past_{name}": array for name, array in zip(self.cache, kept, strict=True)}
            p = np.exp(log_p[0, 0].astype(np.float64)).cumsum()
            token = min(int(p.searchsorted(rng.random() * p[-1], side="right")), self.vocabulary - 1)


def onnx_gpt(weights: Any) -> OnnxGpt | None:
    """None if ONNX Runtime is not installed."""
    try:
        return OnnxGpt(weights)
    except ImportError:
        return None


def completions(lm: SaffuLM, times: int = 40) -> dict[str, float]:
    """Seconds to complete a word, each time after other text."""
    lm.complete_word(BEGUN)
    seconds = []
    for number in range(times):
        begin = time.perf_counter()
        lm.complete_word(f"{number} , and {BEGUN}")
        seconds.append(time.perf_counter() - begin)
    return {"median_s": statistics.median(seconds), "slowest_s": max(seconds)}


def on_a_busy_machine(work: Callable[[], Any]) -> Any:
    endless = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(endless) for _ in range(2 * cores())]
    try:
        return work()
    finally:
        for other in others:
            other.kill()
            other.wait()


def first_line(folder: Path) -> float:
    """Seconds of a new process that loads a model and scores a line."""
    code = f"import saffu; print(saffu.load({str(folder)!r}).score_lines([{LINE!r}])[0])"
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return time.perf_counter() - begin


def memory_mb() -> tuple[float, float, float]:
    """Of this process: all that is resident, its share of it if shared memory is divided, and what is its own alone."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines[1:]}
    own = sizes["Private_Clean"] + sizes["Private_Dirty"]
    return sizes["Rss"] / 1e3, sizes["Pss"] / 1e3, own / 1e3


def worker(model: SaffuLM | str, ready: Any, report: Any) -> None:
    lm = saffu.load(model) if isinstance(model, str) else model
    lm.score_lines([LINE])
    ready.wait()
    report.put(memory_mb())
    ready.wait()


def workers(folder: Path, number: int, method: str) -> dict[str, float]:
    """Memory while this many processes use the same model at once: loaded by each, or before they are forked."""
    context = multiprocessing.get_context(method)
    ready, report = context.Barrier(number), context.Queue()
    model: SaffuLM | str = str(folder) if method == "spawn" else saffu.load(folder)
    begin = time.perf_counter()
    processes = [context.Process(target=worker, args=(model, ready, report)) for _ in range(number)]
    for process in processes:
        process.start()
    each = np.array([report.get() for _ in processes])
    for process in processes:
        process.join()
    names = ("resident_mb_each", "share_mb_each", "own_mb_each")
    return dict(zip(names, each.mean(0).tolist(), strict=True)) | {"seconds": time.perf_counter() - begin}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--dev", nargs="+", required=True)
    parser.add_argument("--targets", type=int, default=15_000)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lm = saffu.load(options.model)
    if not lm.model_.has_network:
        sys.exit(f"{options.model} has no trained network")
    text = [record.text for record in read_records(find_files(options.dev), "file")]
    weights = lm.model_.networks.weights[0]
    shape = {"networks": len(lm.model_.networks.weights), "layers": weights.layers, "width": weights.width}
    results = shape | {"vocabulary": lm.model_.vocabulary, "cores": cores()}
    results["score"] = scoring(lm, text, options.targets)
    results["generate"] = generation(lm)
    results["complete"] = completions(lm)
    results["complete_busy"] = on_a_busy_machine(lambda: completions(lm))
    results["load_and_score_a_line_s"] = min(first_line(options.model) for _ in range(5))
    if options.workers:
        results["workers"] = {how: workers(options.model, options.workers, how) for how in ("fork", "spawn")}
    print(json.dumps(results, indent=2))
    if options.out:
        options.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
