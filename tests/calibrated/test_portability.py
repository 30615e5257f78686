"""The kernels in the C++ that all compilers share."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import each
from saffu.calibrated import kernels
from saffu.errors import SaffuError

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "src" / "saffu" / "native"
STRICT = ["-std=c++17", "-pedantic", "-Wall", "-Wextra", "-Werror"]
COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]
# On Windows, `long` has 32 bits; Microsoft's compiler has none of the others. What a processor supports is asked only
# where there are several sets of instructions to choose from (network.h); a hint that memory will be needed can be left
# out, and only pages, which clang compiles, trap (kernels.h).
FORBIDDEN = r"\b(long|ssize_t|__int128|__builtin_(?!cpu_supports|prefetch|trap)\w+|alloca|pragma pack)\b"


@each("path", sorted([*NATIVE.rglob("*.cpp"), *NATIVE.rglob("*.h")]))
def test_kernels_use_only_what_every_compiler_has(path):
    code = re.sub(r"//.*", "", path.read_text("utf-8"))
    assert not re.findall(FORBIDDEN, code)


def test_every_kernel_is_exported():
    for path in NATIVE.rglob("*.cpp"):
        _, _, interface = path.read_text("utf-8").partition('extern "C" {')
        names = re.findall(r"^(.*?)\bsaffu_\w+\(", interface, re.MULTILINE)
        assert [start for start in names if start and start[0].isalpha() and not start.startswith("EXPORT ")] == []


@pytest.mark.parametrize("compiler", COMPILERS)
def test_kernels_compile_without_a_warning(compiler):
    sources = map(str, NATIVE.rglob("*.cpp"))
    finished = subprocess.run(
        [compiler, *STRICT, "-fsyntax-only", *sources], capture_output=True, text=True, check=False
    )
    assert finished.stderr == ""
    assert finished.returncode == 0


@pytest.mark.skipif(not COMPILERS, reason="needs a C++ compiler")
def test_wide_integers_agree_with_python(tmp_path):
    program = tmp_path / "wide"
    source = ROOT / "tests" / "native" / "wide.cpp"
    subprocess.run([COMPILERS[0], *STRICT, f"-I{NATIVE}", str(source), "-o", str(program)], check=True)
    generator = random.Random(1)
    largest = (1 << 128) - 1
    numbers = [0, 1, largest, 1 << 64, (1 << 64) - 1, *(generator.getrandbits(128) for _ in range(40))]
    cases = [(x, generator.choice([x, x ^ 1, x ^ (1 << 64), *numbers]), bits) for x in numbers for bits in range(128)]
    lines = [f"{x >> 64:x} {x & (1 << 64) - 1:x} {y >> 64:x} {y & (1 << 64) - 1:x} {bits}\n" for x, y, bits in cases]
    finished = subprocess.run([program], input="".join(lines), capture_output=True, text=True, check=True)
    for (x, y, bits), line in zip(cases, finished.stdout.splitlines(), strict=True):
        expected = [(x << bits) & largest, x >> bits, x | y]
        assert line == " ".join(f"{number:032x}" for number in expected) + f" {x == y:d}{x < y:d}{x <= y:d}"


def test_big_endian_processors_are_refused(monkeypatch):
    monkeypatch.setattr("sys.byteorder", "big")
    with pytest.raises(SaffuError, match="little-endian processors only"):
        kernels._load()
