"""Compile the kernels with every compiler on this machine, and compare what they compute, under emulators if necessary.

    python tests/native/portable.py

On Debian: apt-get install clang g++-mingw-w64-x86-64 g++-aarch64-linux-gnu g++-s390x-linux-gnu qemu-user wine64
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "src" / "saffu" / "native"
FLAGS = ["-O2", "-std=c++17", "-pedantic", "-Wall", "-Wextra", "-Werror", f"-I{NATIVE}"]
GCC = ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]  # which gcc 12 finds in its own headers of AVX-512
WINE = shutil.which("wine64") or shutil.which("wine") or "/usr/lib/wine/wine64"  # where Debian keeps it
TARGETS = {  # the compiler, its further flags, and what runs its programs
    "Linux, x86-64, gcc": ("g++", GCC, []),
    "Linux, x86-64, clang": ("clang++", [], []),
    "Linux, ARM, 64 bits": ("aarch64-linux-gnu-g++", [], ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]),
    "Linux, s390x, big-endian": ("s390x-linux-gnu-g++", [], ["qemu-s390x", "-L", "/usr/s390x-linux-gnu"]),
    "Windows, x86-64, MinGW": ("x86_64-w64-mingw32-g++", [*GCC, "-static"], [WINE]),
}


def main() -> int:
    results: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (compiler, flags, emulator) in TARGETS.items():
            if not shutil.which(compiler):
                print(f"{name}: {compiler} is not installed")
                continue
            program = Path(folder) / f"{compiler}.exe"
            sources = [*map(str, sorted(NATIVE.rglob("*.cpp"))), str(HERE / "smoke.cpp")]
            subprocess.run([compiler, *FLAGS, *flags, *sources, "-o", str(program)], check=True)
            if emulator and not shutil.which(emulator[0]):
                print(f"{name}: compiled; {emulator[0]} is not installed")
                continue
            environment = {**os.environ, "WINEDEBUG": "-all", "WINEPREFIX": f"{folder}/wine"}
            run = subprocess.run([*emulator, str(program)], capture_output=True, text=True, check=True, env=environment)
            results[name] = run.stdout
            print(f"{name}: compiled and run")
    same = len(set(results.values())) == 1
    print("all results are the same" if same else f"the results differ: {results}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
