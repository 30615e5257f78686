"""Compiles the kernels of the calibrated model into a shared library next to their sources.

They are called through ctypes, so one wheel serves all Python versions of a platform.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path(__file__).parent / "src" / "saffu" / "calibrated" / "native"
LIBRARY = SOURCES / f"libsaffu.{ {'win32': 'dll', 'darwin': 'dylib'}.get(sys.platform, 'so') }"
FLAGS = ["-O3", "-std=c++17", "-shared", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math"]
MICROSOFT_FLAGS = ["/nologo", "/O2", "/std:c++17", "/EHsc", "/utf-8", "/LD"]
COMPILERS = ("g++", "clang-cl", "clang++") if sys.platform == "win32" else ("c++", "g++", "clang++")


class Kernels(BuildHookInterface):
    """Runs for wheels and for editable installs alike, and not for source distributions."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        compile_kernels(LIBRARY)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag()}"
        build_data["artifacts"].append(str(LIBRARY.relative_to(self.root)))


def compile_kernels(library: Path) -> None:
    compiler = os.environ.get("CXX") or next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        sys.exit("saffu needs a C++ compiler to install from source (g++ or clang++; set CXX to name another)")
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".building-") as scratch:
        fresh = Path(scratch) / library.name
        subprocess.run(command(shlex.split(compiler), fresh), check=True)  # CXX may be "ccache g++"
        fresh.replace(library)


def command(compiler: list[str], library: Path) -> list[str]:
    """The command that compiles all kernels into a library; CXXFLAGS and LDFLAGS can add to it."""
    sources = [str(path) for path in sorted(SOURCES.glob("*.cpp"))]
    more = [shlex.split(os.environ.get(name, "")) for name in ("CXXFLAGS", "LDFLAGS")]
    if Path(compiler[-1]).stem == "clang-cl":
        return [*compiler, *MICROSOFT_FLAGS, *more[0], *sources, f"/Fo{library.parent}{os.sep}", f"/Fe{library}"]
    system = ["-static"] if sys.platform == "win32" else ["-fPIC"]
    if sys.platform == "darwin":
        system += [part for name in architectures() for part in ("-arch", name)]
        system.append(f"-mmacosx-version-min={macos_version()}")
    return [*compiler, *FLAGS, *system, *more[0], *sources, *more[1], "-o", str(library)]


def platform_tag() -> str:
    """The platform of the library, as wheels name it."""
    if sys.platform != "darwin":
        return re.sub("[-.]", "_", sysconfig.get_platform())
    name = "universal2" if len(architectures()) > 1 else architectures()[0]
    return f"macosx_{macos_version().replace('.', '_')}_{name}"


def architectures() -> list[str]:
    """Of macOS: those in ARCHFLAGS, which is how wheels are built for another one, or this machine's."""
    return re.findall(r"-arch (\S+)", os.environ.get("ARCHFLAGS", "")) or [platform.machine()]


def macos_version() -> str:
    """The oldest macOS that the library runs on."""
    return os.environ.get("MACOSX_DEPLOYMENT_TARGET") or ("10.13" if "x86_64" in architectures() else "11.0")
