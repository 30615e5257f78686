"""An exported model in EleutherAI's evaluation harness, on made-up tasks. Skipped where lm_eval is not installed."""

import json
import math
import os
import subprocess
import sys

import pytest

from saffu import SaffuConfig, SaffuLM
from saffu.export import export_hf
from saffu.tokenizer import EOD

pytest.importorskip("lm_eval", reason="make test-hf installs it")

TASK = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {data}}}
test_split: test
output_type: {kind}
"""
CHOICE = """\
doc_to_text: "{{prompt}}"
doc_to_choice: "{{[good, bad]}}"
doc_to_target: 0
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
TEXT = """\
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}]
"""
ANSWER = """\
doc_to_text: "{{prompt}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["the", "."], do_sample: false, max_gen_toks: 12}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


def log_probability(lm: SaffuLM, text: str) -> float:
    """Of the text's tokens as the start of a document, without its end, which the harness does not ask for."""
    (targets,) = lm.tokenize([text]).batches(10_000, lm.network_.lookback)
    return float(lm.network_.log_probabilities(targets)[targets.ids != EOD].double().sum())


def test_lm_eval(train_text, dev_text, tmp_path):
    config = SaffuConfig.preset("calibrated", radius=4, memory=4, classes=20, kept_words=0)
    lm = SaffuLM(config).fit(train_text)
    export_hf(lm, tmp_path / "hf")
    pairs = [{"prompt": "", "good": text, "bad": " ".join(reversed(text.split()))} for text in dev_text[:10]]
    pairs += [{"prompt": "the small dog saw", "good": " a house", "bad": " saw small"}]
    prompts = ["the small", "a king found the"]
    answers = [lm.generate(prompt, temperature=0, max_tokens=12) for prompt in prompts]
    answers = [min((answer.split(stop)[0] for stop in ("the", ".")), key=len) for answer in answers]
    data = {
        "choice": ("multiple_choice", CHOICE, pairs),
        "text": ("loglikelihood_rolling", TEXT, [{"text": text} for text in dev_text[:10]]),
        "answer": (
            "generate_until",
            ANSWER,
            [{"prompt": p, "answer": a} for p, a in zip(prompts, answers, strict=True)],
        ),
    }
    for name, (kind, task, rows) in data.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        head = TASK.format(name=f"saffu_{name}", data=tmp_path / f"{name}.jsonl", kind=kind)
        (tmp_path / f"{name}.yaml").write_text(head + task)
    command = [sys.executable, "-m", "lm_eval", "--model", "hf", "--device", "cpu", "--batch_size", "4"]
    command += ["--model_args", f"pretrained={tmp_path / 'hf'},trust_remote_code=True"]
    command += ["--tasks", "saffu_choice,saffu_text,saffu_answer", "--include_path", str(tmp_path)]
    command += ["--output_path", str(tmp_path / "results.json")]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, env=os.environ | offline, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    (found,) = tmp_path.glob("results*.json")
    results = json.loads(found.read_text())["results"]

    better = [
        log_probability(lm, row["prompt"] + row["good"]) > log_probability(lm, row["prompt"] + row["bad"])
        for row in pairs
    ]
    assert sum(better) > 0
    assert results["saffu_choice"]["acc,none"] == pytest.approx(sum(better) / len(better))
    nll = -sum(log_probability(lm, text) for text in dev_text[:10])
    size = sum(len(text.encode()) for text in dev_text[:10])
    assert results["saffu_text"]["bits_per_byte,none"] == pytest.approx(nll / math.log(2) / size, rel=1e-5)
    assert results["saffu_answer"]["exact_match,none"] == 1.0
