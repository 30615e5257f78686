"""Compiles the kernels of the calibrated model into a shared library next to their sources.

They are called through ctypes, so one wheel serves all Python versions of a platform.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path(__file__).parent / "src" / "saffu" / "calibrated" / "native"
FLAGS = ["-O3", "-std=c++17", "-shared", "-fno-math-errno", "-fno-trapping-math"]


class Kernels(BuildHookInterface):
    """Runs for wheels and for editable installs alike, and not for source distributions."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        library = SOURCES / f"libsaffu.{ {'win32': 'dll', 'darwin': 'dylib'}.get(sys.platform, 'so') }"
        compile_kernels(library)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["artifacts"].append(str(library.relative_to(self.root)))


def compile_kernels(library: Path) -> None:
    compiler = os.environ.get("CXX") or next(filter(shutil.which, ("c++", "g++", "clang++")), None)
    if compiler is None:
        sys.exit("saffu needs a C++ compiler to install from source (g++ or clang++; set CXX to name another)")
    position_independent = [] if sys.platform == "win32" else ["-fPIC"]
    command = [*shlex.split(compiler), *FLAGS, *position_independent]  # CXX may be "ccache g++"
    fresh = library.with_name(f"{library.name}.{os.getpid()}")
    subprocess.run([*command, *map(str, sorted(SOURCES.glob("*.cpp"))), "-o", str(fresh)], check=True)
    fresh.replace(library)
