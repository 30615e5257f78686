"""Compiles the kernels into a shared library next to their sources.

They are called through ctypes, so one wheel serves all Python versions of a platform. Where GitHub runs the build, the
package's description also gets links that work on the package index.
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
from hatchling.metadata.plugin.interface import MetadataHookInterface

SOURCES = Path(__file__).parent / "src" / "saffu" / "native"
LIBRARY = SOURCES / f"libsaffu.{ {'win32': 'dll', 'darwin': 'dylib'}.get(sys.platform, 'so') }"
FLAGS = ["-O3", "-std=c++17", "-shared", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math"]
MICROSOFT_FLAGS = ["/nologo", "/O2", "/std:c++17", "/EHsc", "/utf-8", "/LD"]
WEB = Path(__file__).parent / "src" / "saffu" / "play" / "web" / "kernels.wasm"
WEB_SOURCES = ("model.cpp", "counted/query.cpp", "counts/rows.cpp", "counts/tables.cpp")
WEB_FLAGS = ["--target=wasm32-wasi", "-msimd128", "-fno-exceptions", "-mexec-model=reactor", "-Wl,--strip-all"]
WEB_EXPORTS = (
    "malloc free saffu_count_rows saffu_merge_rows saffu_regroup_rows saffu_build_levels saffu_model "
    "saffu_free_model saffu_put saffu_ready saffu_room saffu_fill saffu_reader "
    "saffu_free_reader saffu_read saffu_plain_shares saffu_read_targets saffu_score saffu_distribution saffu_explain "
    "saffu_match"
)
COMPILERS = ("g++", "clang-cl", "clang++") if sys.platform == "win32" else ("c++", "g++", "clang++")


class Kernels(BuildHookInterface):
    """Runs for wheels and for editable installs alike, and not for source distributions."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        compile_kernels(LIBRARY)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag()}"
        build_data["artifacts"].append(str(LIBRARY.relative_to(self.root)))
        compile_for_browsers(WEB)
        if WEB.exists():  # or it was put there: it is the same on all systems
            build_data["artifacts"].append(str(WEB.relative_to(self.root)))


class Description(MetadataHookInterface):
    """README.md and the project's addresses, which are known only where GitHub runs the build."""

    def update(self, metadata: dict[str, Any]) -> None:
        readme = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["urls"] = {}
        if repository := os.environ.get("GITHUB_REPOSITORY"):
            address = f"https://github.com/{repository}"
            readme = absolute_links(readme, address, os.environ["GITHUB_REF_NAME"])
            metadata["urls"] = {"Source": address, "Changelog": f"{address}/blob/main/CHANGELOG.md"}
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}


def absolute_links(page: str, address: str, version: str) -> str:
    """A page whose links and images lead to a version of the repository.

    >>> absolute_links("[a](docs/a.md) ![b](b.svg) [c](https://c.org) [d](#d)", "https://x", "v1")
    '[a](https://x/blob/v1/docs/a.md) ![b](https://x/raw/v1/b.svg) [c](https://c.org) [d](#d)'
    """

    def link(match: re.Match[str]) -> str:
        kind = "raw" if match[1].endswith((".svg", ".png")) else "blob"
        return f"]({address}/{kind}/{version}/{match[1]})"

    return re.sub(r"\]\((?!https?:|#)([^)]+)\)", link, page)


def compile_kernels(library: Path) -> None:
    compiler = os.environ.get("CXX") or next(filter(shutil.which, COMPILERS), None)
    if compiler is None:
        sys.exit("saffu needs a C++ compiler to install from source (g++ or clang++; set CXX to name another)")
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".building-") as scratch:
        fresh = Path(scratch) / library.name
        subprocess.run(command(shlex.split(compiler), fresh), check=True)  # CXX may be "ccache g++"
        fresh.replace(library)


def compile_for_browsers(library: Path) -> None:
    """Compile the kernels that a page needs to WebAssembly, if there is a compiler for it."""
    if not can_compile_for_browsers():
        return
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".building-") as scratch:
        fresh = Path(scratch) / library.name
        exports = [f"-Wl,--export={name}" for name in WEB_EXPORTS.split()]
        flags = [flag for flag in FLAGS if flag != "-shared"]
        sources = [str(SOURCES / name) for name in WEB_SOURCES]
        more = shlex.split(os.environ.get("WEB_CXXFLAGS", ""))
        whole = ["clang++", *flags, *WEB_FLAGS, *more, *exports, *sources, "-o", str(fresh)]
        if subprocess.run(whole).returncode == 0:  # a page is not worth a failed installation
            fresh.chmod(0o644)
            fresh.replace(library)


def can_compile_for_browsers() -> bool:
    """Whether there is a clang with the C++ library for wasm32."""
    if not shutil.which("clang++"):
        return False
    with tempfile.TemporaryDirectory() as scratch:
        whole = ["clang++", *WEB_FLAGS, "-x", "c++", "-", "-o", f"{scratch}/none.wasm"]
        return subprocess.run(whole, input=b"#include <vector>", capture_output=True).returncode == 0


def command(compiler: list[str], library: Path) -> list[str]:
    """The command that compiles all kernels into a library; CXXFLAGS and LDFLAGS can add to it."""
    sources = [str(path) for path in sorted(SOURCES.rglob("*.cpp"))]
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
