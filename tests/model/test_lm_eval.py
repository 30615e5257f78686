"""An exported model in EleutherAI's evaluation harness, on made-up tasks. Skipped where lm_eval is not installed."""

import json
import math
import os
import subprocess
import sys

import pytest

from companion_data import with_network
from conftest import CONFIGS
from saffu import SaffuLM

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
target_delimiter: ""
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
generation_kwargs: {until: STOPS, do_sample: false, max_gen_toks: 12}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


def log_probability(lm: SaffuLM, text: str) -> float:
    """Of the text as the start of a document, without the end of its last line, which the harness does not ask for."""
    return float(lm.model_.log_probabilities(lm.tokenize([text]))[:-1].sum())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["calibrated", "companion", "running"])
def test_lm_eval(kind, fitted, train_text, dev_text, tmp_path):
    if kind == "running":  # lines follow others, so answers may have several
        lm = SaffuLM(CONFIGS["calibrated"]()).fit(["\n".join(train_text[at : at + 50]) for at in range(0, 600, 50)])
    else:
        lm = with_network(train_text, dev_text) if kind == "companion" else fitted(kind)
    lines = 12 if kind == "running" else 1
    lm.export_hf(tmp_path / "hf")
    pairs = [{"prompt": "", "good": text, "bad": " ".join(reversed(text.split()))} for text in dev_text[:10]]
    pairs += [{"prompt": "the small dog saw", "good": " a house", "bad": " saw small"}]
    texts = [*dev_text[:7], "\n".join(dev_text[7:10])]
    prompts = ["the small", "a king found the"]
    answers = [lm.generate(prompt, temperature=0, max_tokens=12, lines=lines) for prompt in prompts]
    stops = ["in the"] if kind == "running" else ["the", ".", "\n"]
    answers = [min((answer.split(stop)[0] for stop in stops), key=len) for answer in answers]
    assert any("\n" in answer.strip() for answer in answers) == (kind == "running")
    asked = [{"prompt": prompt, "answer": answer} for prompt, answer in zip(prompts, answers, strict=True)]
    data = {
        "choice": ("multiple_choice", CHOICE, pairs),
        "text": ("loglikelihood_rolling", TEXT, [{"text": text} for text in texts]),
        "answer": ("generate_until", ANSWER.replace("STOPS", json.dumps(stops)), asked),
    }
    for name, (kind, task, rows) in data.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        head = TASK.format(name=f"saffu_{name}", data=tmp_path / f"{name}.jsonl", kind=kind)
        (tmp_path / f"{name}.yaml").write_text(head + task)
    command = [sys.executable, "-m", "lm_eval", "--model", "hf", "--device", "cpu", "--batch_size", "4"]
    # Otherwise the harness would ask for the probability of a second <sod> in whole texts.
    command += ["--model_args", f"pretrained={tmp_path / 'hf'},trust_remote_code=True,add_bos_token=False"]
    command += ["--tasks", "saffu_choice,saffu_text,saffu_answer", "--include_path", str(tmp_path)]
    command += ["--output_path", str(tmp_path / "results.json"), "--log_samples"]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, env=os.environ | offline, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    (found,) = tmp_path.glob("results*.json")
    results = json.loads(found.read_text())["results"]

    choices = [(row["prompt"] + row["good"], row["prompt"] + row["bad"]) for row in pairs]
    better = [log_probability(lm, good) > log_probability(lm, bad) for good, bad in choices]
    assert sum(better) > 0
    assert results["saffu_choice"]["acc,none"] == pytest.approx(sum(better) / len(better))
    (samples,) = tmp_path.glob("samples_saffu_choice*.jsonl")
    first = min(map(json.loads, samples.read_text().splitlines()), key=lambda sample: sample["doc_id"])
    likelihood = float(first["filtered_resps"][0][0])
    assert likelihood == pytest.approx(log_probability(lm, choices[0][0]), rel=1e-4)  # the first token included
    nll = -sum(log_probability(lm, text) for text in texts)
    size = sum(len(text.encode()) for text in texts)
    assert results["saffu_text"]["bits_per_byte,none"] == pytest.approx(nll / math.log(2) / size, rel=1e-5)
    assert results["saffu_answer"]["exact_match,none"] == 1.0
