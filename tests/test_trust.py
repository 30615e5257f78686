"""What a user must be able to rely on, across packages: nothing silently wrong, no tracebacks, nothing left behind."""

import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

from conftest import each, part, sentences
from damage import GOLDEN
from saffu.calibrated.kernels import pointer

QUICK = "--order 3 --slots 3 --word-classes 20"
SMALL = "--block 4 --radius 2 --block-dimension 12 --radius-dimension 12 --hidden-dimension 12"
linux = pytest.mark.skipif(sys.platform != "linux", reason="pipes and devices of Linux")


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """Files a.txt, b.txt (300 documents each), dev.txt, and secret.txt in the current folder."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(["a.txt", "b.txt", "dev.txt"]):
        (tmp_path / name).write_text("\n".join(sentences(number, 300)) + "\n")
    (tmp_path / "secret.txt").write_text("a xylophonist xylophonist\nthe xylophonist xylophonist\n")
    return tmp_path


def one_line(result, message=""):
    assert result.status == 2
    assert result.err.startswith("saffu: ")
    assert result.err.count("\n") == 1
    assert message in result.err


# Text


@linux
def test_pipes_lose_nothing(texts):
    command = f"{sys.executable} -m saffu train a.txt <(cat b.txt) - --split line --hold-out 0 --out m {QUICK} --json"
    done = subprocess.run(["bash", "-c", f"{command} < dev.txt"], capture_output=True, check=True, text=True)
    assert json.loads(done.stdout)["trained_on"]["documents"] == 900


@each(
    "line",
    [
        "train '' --out m",
        "train a.txt --dev '' --out m",
        "train a.txt --out ''",
        "train a.txt --out m --encoder ''",
        "info ''",
        "pairs m ''",
        "merge m '' --out n",
        "compare ''",
        "report ''",
        "train a.txt --out m --ray ''",
    ],
)
def test_empty_names_are_not_the_current_folder(saffu, texts, line):
    one_line(saffu(line), "empty")
    assert not (texts / "m").exists()


@each("dev", ["a.txt", "./a.txt", "copy.txt", "a.txt dev.txt"])
def test_held_out_text_is_not_training_text(saffu, texts, dev):
    shutil.copy("a.txt", "copy.txt")
    one_line(saffu(f"train a.txt b.txt --dev {dev} --out m"))


@linux
@pytest.mark.slow
def test_a_killed_training_leaves_no_text(texts):
    (texts / "scratch").mkdir()
    script = (
        "import os, signal; from saffu.text.corpus import TokenCorpus as C; build = C.build\n"
        "def killed(*a, **k):\n    build(*a, **k); os.kill(os.getpid(), signal.SIGKILL)\n"
        "C.build = killed; from saffu.cli.main import main; main(['train', '-', '--out', 'm'])"
    )
    environment = os.environ | {"TMPDIR": str(texts / "scratch")}
    with (texts / "a.txt").open() as text:
        done = subprocess.run([sys.executable, "-c", script], stdin=text, env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert list((texts / "scratch").iterdir()) == []


# Forgetting


def test_forgetting_states_what_stays(saffu, texts):
    assert saffu(f"train a.txt secret.txt --split line --hold-out 0 --out own {QUICK}").status == 0
    result = saffu("forget own secret.txt")
    assert "tokenizer.json, and with it every export, still has" in result.out and "xylophonist" in result.out
    assert "xylophonist" in part(texts / "own", "tokenizer.json").read_text()
    saffu(f"train b.txt --split line --hold-out 0 --out public {QUICK}")
    saffu(f"train a.txt secret.txt --split line --hold-out 0 --tokenizer public --out private {QUICK}")
    result = saffu("forget private secret.txt")
    assert "the encoder stays as it was fitted" in result.out
    assert "tokenizer.json" not in result.out
    assert "xylophonist" not in part(texts / "private", "tokenizer.json").read_text()
    saffu("train a.txt secret.txt --split line --hold-out 0 --encoder public --out shared")
    assert saffu("forget shared secret.txt").out.count("\n") == 1


# Numbers


@each(
    "options",
    [
        "--order 100000000000000000000000",
        "--word-classes 4294967296",
        f"--preset paper {SMALL} --block-dimension 4294967296",
        f"--preset paper {SMALL} --hidden-dimension 4294967296",
        f"--preset paper {SMALL} --document-shards 4294967296",
        f"--preset paper {SMALL} --set smoothing=1e308",
        f"--preset paper {SMALL} --backprop --learning-rate 1e308",
        f"--preset paper {SMALL} --backprop --batch-size 100000000000000000000000",
        f"--preset paper {SMALL} --backprop --set init_scale=1e308",
    ],
)
def test_absurd_numbers_are_one_line(saffu, texts, options):
    one_line(saffu(f"train a.txt --out m {options}"))


@pytest.mark.parametrize("name", [r"$\foo$", "$", "a_b^c"])
def test_names_are_not_formulas(saffu, texts, name):
    pytest.importorskip("matplotlib")
    text = f"a.txt --dev dev.txt --split line --preset paper {SMALL} --backprop --max-folds 1"
    assert saffu(f"train {text} --out run").status == 0
    assert saffu(["compare", "run", "--names", name, "--title", name, "--out", "curves"]).status == 0
    assert Path("curves.png").exists()


@pytest.mark.slow
@each("number, allowed", [(signal.SIGINT, (130,)), (signal.SIGTERM, (143, -15))])
@each("module", ["saffu.cli.commands", "saffu.text.corpus", "saffu.calibrated.kernels", "numpy"])
def test_signals_while_importing(texts, number, allowed, module):
    script = (
        "import os, sys, builtins; usual = builtins.__import__\n"
        "def interrupted(name, *rest, **named):\n"
        f"    if name == {module!r}: os.kill(os.getpid(), {int(number)})\n"
        "    return usual(name, *rest, **named)\n"
        "builtins.__import__ = interrupted\n"
        "from saffu.cli.main import main; main(['train', 'a.txt', '--out', 'm'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, text=True)
    assert done.returncode in allowed
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_signals_while_torch_is_imported(name, status):
    pytest.importorskip("torch")
    script = (
        "import sys, signal\n"
        "class Finder:\n"
        "    def find_spec(self, name, *rest):\n"
        f"        if name == 'torch._C': signal.raise_signal(signal.{name})\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from saffu.cli import main; main.parse = lambda words: __import__('torch')\n"
        "main.os._exit = lambda status: (print('exit', status), sys.stdout.flush(), sys.exit(9))\n"
        "main.main(['info', 'x'])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, text=True)
    assert done.stdout == f"exit {status}\n"


def test_a_cluster_that_does_not_answer_is_not_waited_for():
    from saffu.cluster.engine import require_listening

    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        require_listening(address)
    with pytest.raises(OSError, match="refused"):
        require_listening(address)
    require_listening("auto")


def test_work_in_threads_keeps_alive_what_it_reads(fitted, monkeypatch):
    lm, kernels = fitted("calibrated"), []
    model = lm.model_.without_memory()
    monkeypatch.setattr("saffu.calibrated.model.in_chunks", lambda kernel, *_: kernels.append(kernel))
    model.log_probabilities(lm.tokenize(["the old dog"]))
    arrays = weakref.ref(model.native)
    del model
    gc.collect()
    assert arrays() is not None


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no ulimit")
def test_a_small_stack_is_enough():
    """Python itself needs 64 to 96 KB before it runs anything."""
    line = f"ulimit -s 128 && exec {sys.executable} -m saffu generate {GOLDEN} the --seed 1"
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=False, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pointer_keeps_its_array_alive():
    """Kernels run without Python's lock: another thread would get the memory of an array that nothing refers to."""
    array = np.ones(2)
    kept, address = weakref.ref(array), pointer(array, np.float64)
    del array
    gc.collect()
    assert kept() is not None and address.value == kept().ctypes.data
