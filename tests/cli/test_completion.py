"""saffu completion: what the scripts complete."""

import shutil
import subprocess

import pytest

from conftest import each
from saffu.cli.commands import COMMANDS


@each(
    "typed, expected",
    [
        (["saffu", "sc"], ["score"]),
        (["saffu", "score", "model", "--wo"], ["--words"]),
        (["saffu", "export", "--p"], ["--prune"]),
        (["saffu", "nothing", "--p"], []),
    ],
)
def test_bash(saffu, typed, expected):
    if not shutil.which("bash"):
        pytest.skip("there is no bash")
    script = saffu("completion bash")
    assert script.status == 0
    words = " ".join(typed)
    ask = f"COMP_WORDS=({words}); COMP_CWORD={len(typed) - 1}; _saffu; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(["bash", "-c", script.out + ask], capture_output=True, text=True)
    assert (done.stdout.split(), done.stderr) == (expected, "")


def test_every_shell_knows_every_command(saffu):
    for shell in ("bash", "zsh", "fish"):
        out = saffu(f"completion {shell}").out
        assert all(name in out for name in COMMANDS)
    assert "-l words" in out and r"the paper\'s" in out
    assert saffu("completion tcsh").status == 2
