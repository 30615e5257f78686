"""Tasks on Ray. Their results are files, so a finished task is never run again.

All nodes must share one folder, to which tasks write everything they make; nothing is written anywhere else. A task is
a plain function of saffu; Ray runs it again if its worker or its node is lost. Its arguments travel as JSON and get the
types of its signature back. Its return value is kept as a JSON file, written after everything else, so a run that was
killed continues where it stopped: in the hidden folder next to its output that keeps finished work.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints
from uuid import uuid4

import saffu
from saffu.errors import SaffuError, install_command
from saffu.files import Array, checksum, to_safetensors
from saffu.format import progress_bar
from saffu.text.sources import Source
from saffu.workers import cores

LOCAL = "local"  # instead of the address of a cluster: this machine, for as long as it is needed
RETRIES = 5  # times that a task is run again after its worker was lost
IN_FLIGHT = 1000  # tasks submitted at a time
OBJECT_STORE = 80 << 20  # bytes; only paths and numbers travel through it
JOB = "job.json"  # what a run does, in its work folder
SCRATCH = "saffu-ray-"  # begins the name of the folder of a local Ray


class Lost(SaffuError):
    """Workers were lost too often; a later run may succeed."""


class Cluster:
    """A Ray cluster and the folder that all of its nodes share."""

    def __init__(self, ray: Any, folder: Path) -> None:
        self._ray = ray
        self.folder = folder
        self._task = ray.remote(num_cpus=1, max_retries=RETRIES, scheduling_strategy="SPREAD")(on_node())

    @property
    def processors(self) -> int:
        """The number of tasks that can run at once."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def map(
        self,
        stage: str,
        work: Callable[..., Any],
        items: Sequence[Sequence[Any]],
        title: str | None,
        unit: str = " tasks",
    ) -> list[Any]:
        """Return `work(*item)` for each item, in order. `work` must be a top-level function of a saffu module."""
        place = self.folder / stage
        place.mkdir(parents=True, exist_ok=True)
        kept = [place / f"{number:06d}.json" for number in range(len(items))]
        waiting = iter([number for number, path in enumerate(kept) if not path.exists()])
        flying: dict[Any, int] = {}
        with progress_bar(title, total=len(items), unit=unit) as bar:
            bar.update(sum(path.exists() for path in kept))
            while True:
                while len(flying) < IN_FLIGHT and (number := next(waiting, None)) is not None:
                    # As text, so that a node without saffu can receive it and report what is missing.
                    call = work.__module__, work.__qualname__, as_json(items[number])
                    flying[self._task.remote(saffu.__version__, str(kept[number]), *call)] = number
                if not flying:
                    break
                (ready,), _ = self._ray.wait(list(flying), num_returns=1)
                self._finish(ready)
                del flying[ready]
                bar.update(1)
        return [json.loads(path.read_bytes()) for path in kept]

    def _finish(self, ready: Any) -> None:
        exceptions = self._ray.exceptions
        try:
            refusal = self._ray.get(ready)
        except (exceptions.WorkerCrashedError, exceptions.NodeDiedError, exceptions.OutOfMemoryError) as error:
            reason = str(error).splitlines()[0]
            raise Lost(
                f"a task lost its worker {RETRIES + 1} times ({reason}); lower `memory_limit` or use larger nodes"
            ) from None
        if refusal:
            raise SaffuError(refusal)


def on_node() -> Callable[..., str | None]:
    """The function that runs on a node. It is sent by value, so that it can report that saffu is missing there."""

    def task(version: str, kept: str, module: str, name: str, item: str) -> str | None:
        import importlib
        import os
        import socket
        from pathlib import Path

        os.environ["SAFFU_THREADS"] = "1"  # a task has one core
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        here = f"the node {socket.gethostname()}"
        try:
            installed = importlib.import_module("saffu").__version__
        except ImportError:
            return f"{here} has no saffu; install saffu {version} on every node"
        if installed != version:
            return f"{here} has saffu {installed}, but this is {version}; install the same version on every node"
        if not Path(kept).parent.is_dir():
            return f"{here} does not see {Path(kept).parent.parent}; use a folder that all nodes share"
        from saffu.cluster.engine import called, keep
        from saffu.errors import SaffuError

        try:
            keep(Path(kept), called(module, name, item))
        except SaffuError as error:
            return str(error)
        return None

    return task


def as_json(item: Sequence[Any]) -> str:
    """The arguments of a task: plain values, paths, and dataclasses of them."""
    return json.dumps(list(item), default=lambda value: str(value) if isinstance(value, Path) else asdict(value))


def called(module: str, name: str, item: str) -> Any:
    """What a function of saffu returns for arguments that `as_json` wrote."""
    work = getattr(import_module(module), name)
    kinds = [kind for name, kind in get_type_hints(work).items() if name != "return"]
    return work(*(typed(kind, value) for kind, value in zip(kinds, json.loads(item), strict=True)))


def typed(kind: Any, value: Any) -> Any:
    """A value of this type, from what JSON holds of it.

    >>> typed(tuple[Path, ...], ["a", "b"]) == (Path("a"), Path("b"))
    True
    """
    inner = get_args(kind)
    origin = get_origin(kind)
    if value is None or kind is Any:
        return value
    if is_dataclass(kind):
        kinds = get_type_hints(kind)
        return kind(**{name: typed(kinds[name], entry) for name, entry in value.items()})  # type: ignore[operator]
    if type(None) in inner:
        return typed(inner[0], value)
    if origin is tuple:
        return tuple(map(typed, inner[:1] * len(value) if inner[-1] is ... else inner, value))
    if origin in (list, Sequence):
        return [typed(inner[0], entry) for entry in value]
    if origin in (dict, Mapping):
        return {name: typed(inner[1], entry) for name, entry in value.items()}
    return Path(value) if kind is Path else value


def keep(path: Path, result: Any) -> None:
    """Write the result of a task."""
    _write(path, [json.dumps(result).encode()])


def write_arrays(path: Path, arrays: dict[str, Array]) -> None:
    """Write the arrays made by a task."""
    _write(path, to_safetensors(arrays))


def _write(path: Path, pieces: Any) -> None:
    with appearing(path, "xb") as file:
        for piece in pieces:
            file.write(piece)


@contextmanager
def appearing(path: Path, mode: str) -> Iterator[Any]:
    """A file that appears when it is complete, even if two nodes write it at once; removed if something fails."""
    fresh = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with fresh.open(mode, encoding=None if "b" in mode else "utf-8", newline=None if "b" in mode else "") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


@contextmanager
def work_folder(out: Path, job: Mapping[str, Any], kept: bool = False) -> Iterator[Path]:
    """A hidden folder next to the output, removed at the end or by an error that running again would only repeat.

    It is kept if the process is killed or interrupted, or if workers are lost; if `kept`, after any error. A later run
    with the same job continues with it; a run with another job starts over.
    """
    folder = place_of(out)
    if folder.exists() and not is_begun(out, job):
        if any(folder.iterdir()) and not (folder / JOB).is_file():
            raise SaffuError(f"{folder} is not the work of an earlier run; move it first")
        shutil.rmtree(folder)
    if not folder.exists():
        folder.mkdir(parents=True)
        keep(folder / JOB, named(job))
    try:
        yield folder
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; finished work is kept in {folder}; rerun the same command to continue"
        ) from None
    except SaffuError as error:
        if not (kept or isinstance(error, Lost)):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def is_begun(out: Path, job: Mapping[str, Any]) -> bool:
    """Whether a run with the same job was begun earlier and interrupted."""
    path = place_of(out) / JOB
    return path.is_file() and bool(json.loads(path.read_bytes()) == json.loads(json.dumps(named(job))))


def named(job: Mapping[str, Any]) -> dict[str, Any]:
    return {"saffu": saffu.__version__, **job}


def place_of(out: Path) -> Path:
    place = Path(out).resolve()
    return place.with_name(f".{place.name}.ray")


def described_sources(sources: Sequence[Source]) -> list[list[Any]]:
    """Facts that change if a file changes: size and modification time, or the checksum of text from a pipe."""
    facts: list[list[Any]] = []
    for source in sources:
        if source.spooled:
            with source.path.open("rb") as file:
                facts.append([source.name, checksum(file)])
        else:
            state = source.path.stat()
            facts.append([str(source.path.resolve()), state.st_size, state.st_mtime_ns])
    return facts


def shared_sources(sources: Sequence[Source], folder: Path) -> list[Source]:
    """Sources that nodes can open: text from a pipe is copied to the work folder."""
    shared = []
    for number, source in enumerate(sources):
        path = source.path.resolve()
        if source.spooled:
            path = folder / f"pipe-{number}"
            if not path.exists():
                shutil.copyfile(source.path, path)
        shared.append(Source(path, source.name, source.spooled))
    return shared


def require_usable(address: str) -> None:
    """Fail before any work if what --ray names cannot be a cluster."""
    if address != LOCAL and Path(address).exists():
        raise SaffuError(f"{address} is a path, not the address of a cluster; put --ray last, or write --ray=local")
    if find_spec("ray") is None:
        raise SaffuError(f"`ray` needs the package ray; install it with `{install_command('cluster')}`")


@contextmanager
def connected(address: str, folder: Path) -> Iterator[Cluster]:
    """A cluster to run tasks on: the one at an address, or one on this machine that ends with the `with` statement."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    remove_scratch()
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    with tempfile.TemporaryDirectory(
        prefix=f"{SCRATCH}{os.getpid()}-", dir=scratch_place(), ignore_cleanup_errors=True
    ) as scratch:
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            if address == LOCAL:
                own = {"num_cpus": cores(), "object_store_memory": OBJECT_STORE, "include_dashboard": False}
                ray.init(LOCAL, _temp_dir=scratch, **own, **quiet)
            else:
                require_listening(address)
                ray.init(address, **quiet)
        except (OSError, OverflowError, RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise SaffuError(
                f"no Ray cluster at {address} ({reason}); start one with `ray start --head`, or use --ray=local"
            ) from None
        except SystemExit:  # how Ray, which has put its own handlers in place, answers SIGTERM
            raise SystemExit(143) from None
        if threading.current_thread() is threading.main_thread():  # Ray has put its own in their place
            for number, handler in handlers.items():
                signal.signal(number, handler)
        try:
            yield Cluster(ray, folder)
        finally:
            ray.shutdown()


def require_listening(address: str) -> None:
    """Raise OSError if nothing listens at host:port, for which Ray would wait minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def scratch_place() -> Path:
    """A folder whose name is short enough for Ray's sockets."""
    usual = Path(tempfile.gettempdir())
    return usual if len(str(usual)) < 20 or not Path("/tmp").is_dir() else Path("/tmp")


def remove_scratch() -> None:
    """Remove the folders of local Rays whose process was killed."""
    for left in scratch_place().glob(f"{SCRATCH}*"):
        owner = left.name.removeprefix(SCRATCH).split("-")[0]
        if owner.isdecimal() and not is_running(int(owner)):
            shutil.rmtree(left, ignore_errors=True)


def is_running(process: int) -> bool:
    if sys.platform == "win32":  # where os.kill would end the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
