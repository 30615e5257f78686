"""Every writer: what exists stays without --force, what is not ours stays even then, and inputs are never outputs."""

import errno
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import saffu as package
from conftest import sentences
from saffu import SaffuError, files, writing

QUICK = "--word-classes 0 --order 3 --hold-out 0 --split line"
posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX permissions and pipes")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a text, a model of it, and an export."""
    from saffu.cli.main import main

    folder = tmp_path_factory.mktemp("made")
    (folder / "a.txt").write_text("\n".join(sentences(1, 60)) + "\n")
    (folder / "b.txt").write_text("a new line .\n")
    for line in (f"train {folder}/a.txt --out {folder}/m {QUICK} --quiet", f"export {folder}/m --out {folder}/hf"):
        with pytest.raises(SystemExit) as exit:
            main(line.split())
        assert not exit.value.code
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def state(folder):
    """All files with their contents, and everything else."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else stat.S_IFMT(path.lstat().st_mode)
        for path in sorted(folder.rglob("*"))
    }


def refused(saffu, here, line, message):
    before = state(here)
    result = saffu(line)
    assert (result.status, result.out) == (2, ""), (line, result)
    assert message in result.err and len(result.err.splitlines()) == 1, (line, result.err)
    assert state(here) == before, line


# Files


@pytest.mark.parametrize("line", ["embed m --out t", "embed m king --out t", "export m --to arpa --out t"])
def test_a_file_of_the_user_is_never_replaced(saffu, here, line):
    (here / "t").write_text("my thesis\n")
    refused(saffu, here, line, "t exists; choose another name, or replace it with --force")
    refused(saffu, here, f"{line} --force", "will not replace t: saffu did not write it")
    refused(saffu, here, line.replace(" t", " m") + " --force", "m is also an input")
    (here / "t").unlink()
    assert saffu(line).status == 0
    ours = (here / "t").read_bytes()
    refused(saffu, here, line, "t exists")
    assert saffu(f"{line} --force").status == 0
    assert (here / "t").read_bytes() == ours
    assert not list(here.glob(".*"))


@posix
@pytest.mark.parametrize("line", ["embed m --out pipe", "export m --to arpa --out pipe"])
@pytest.mark.parametrize("force", ["", " --force"])
def test_a_pipe_is_written_to_and_stays_a_pipe(saffu, here, line, force):
    os.mkfifo("pipe")
    received = []
    reader = threading.Thread(target=lambda: received.append((here / "pipe").read_bytes()))
    reader.start()
    assert saffu(line + force).status == 0
    reader.join()
    assert stat.S_ISFIFO((here / "pipe").stat().st_mode)
    assert saffu(line.replace("pipe", "file")).status == 0
    assert received[0] == (here / "file").read_bytes()


@posix
@pytest.mark.slow
@pytest.mark.parametrize("line", ["embed m", "export m --to arpa"])
def test_standard_output_can_be_a_pipe(saffu, here, line):
    command = [sys.executable, "-m", "saffu", *line.split(), "--out", "/dev/stdout"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300)
    assert saffu(f"{line} --out file").status == 0
    assert done.stdout == (here / "file").read_bytes()


@posix
def test_sockets_and_devices_are_not_replaced(saffu, here):
    import socket

    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        refused(saffu, here, "embed m --out socket --force", "socket is not a regular file, a pipe, or a character dev")
    before = Path("/dev/null").stat()
    assert saffu("embed m --out /dev/null --force").status == 0
    assert Path("/dev/null").stat().st_ino == before.st_ino and stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_file_that_appears_during_the_work_stays(here):
    def write():
        with writing.replacing(here / "new", force=False) as file:
            file.write(b"ours")
            (here / "new").write_text("the user's")

    with pytest.raises(SaffuError, match="new exists"):
        write()
    assert (here / "new").read_text() == "the user's"
    assert not list(here.glob(".*"))


def test_a_link_stays_a_link(saffu, here):
    assert saffu("embed m --out vectors.txt").status == 0
    (here / "link").symlink_to("vectors.txt")
    assert saffu("embed m king --out link --force").status == 0
    assert (here / "link").is_symlink()
    assert (here / "vectors.txt").read_text().startswith("1 ")


# Folders

FOREIGN = {
    "another program's settings": {"config.json": '{"theme": "dark"}'},
    "another library's model": {"config.json": '{"model_type": "bert", "format": 2}'},
    "no settings": {"config.json": ""},
    "a list": {"config.json": "[1]"},
    "a thesis": {"thesis.txt": "all of it"},
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize(
    "line",
    [
        f"train a.txt --out f {QUICK}",
        "merge m n --out f",
        "export m --out f",
        f"train a.txt --tokenizer m --out f {QUICK}",
    ],
)
def test_a_foreign_folder_is_never_replaced(saffu, here, line, kind):
    shutil.copytree("m", "n")
    (here / "f").mkdir()
    for name, text in FOREIGN[kind].items():
        (here / "f" / name).write_text(text)
    refused(saffu, here, line, "f is not empty")
    refused(saffu, here, f"{line} --force", "will not replace f: it is not a saved model")


def test_what_was_added_to_a_model_stays(saffu, here):
    (here / "m" / "notes.txt").write_text("mine")
    refused(saffu, here, f"train a.txt --out m --force {QUICK}", "'notes.txt' is not part of a saved model")
    (here / "hf" / "README.md").write_text("my model card")
    refused(saffu, here, "export m --out hf --force", "'README.md' was changed after saffu wrote it")


@pytest.mark.parametrize("name", ["m", "./m", "x/../m", "link"])
def test_inputs_are_never_outputs(saffu, here, name):
    (here / "x").mkdir()
    (here / "link").symlink_to("m")
    shutil.copytree("m", "n")
    for line in (
        f"export m --out {name} --force",
        f"merge n m --out {name} --force",
        f"train a.txt --encoder m --out {name} --force",
        f"train a.txt --tokenizer m --out {name} --force",
        f"train m/log.jsonl --field stage --out {name} --force",
    ):
        refused(saffu, here, line, "is also an input (m")


@pytest.mark.parametrize(
    "line",
    [
        "export m --out m/sub",
        "export m --to arpa --out m/x",
        "embed m --out m/x/y",
        "embed hf --out m/x",
        f"train a.txt --out m/sub {QUICK}",
        "ablate a.txt --dev b.txt --out m --quiet --blocks 2 --radii 2 --modes sum/cat",
        "compare hf --out m/curves",
        "download babylm --out m",
    ],
)
def test_nothing_is_written_into_a_model(saffu, here, line):
    """It could no longer be changed, because it would have to be replaced with what is not part of it."""
    refused(saffu, here, line, "lies in the model m, which could then no longer be changed")


def test_an_export_never_replaces_counts(saffu, here):
    shutil.copytree("m", "n")
    refused(saffu, here, "export m --out n --force", "n holds a model with its counts")
    with pytest.raises(SaffuError, match="holds a model with its counts"):
        package.load("m").export_hf("m")
    assert saffu("export m --out hf --force").status == 0


def test_a_lock_file_of_another_program_stays(saffu, here):
    (here / ".m.lock").write_text("pid 12")
    refused(saffu, here, "update m b.txt", ".m.lock is not a lock file of saffu")


# Permissions


@posix
@pytest.mark.parametrize("line", ["update f b.txt", "forget f part.txt", "train a.txt --force --out f " + QUICK])
def test_permissions_stay(saffu, here, line):
    (here / "part.txt").write_text(sentences(1, 1)[0] + "\n")
    shutil.copytree("m", "f")
    for path in (here / "f").iterdir():
        path.chmod(0o600)
    (here / "f").chmod(0o2750)
    if os.getuid() == 0:
        os.chown(here / "f", 12345, 12346)
    before = (here / "f").stat()
    assert saffu(line).status == 0
    after = (here / "f").stat()
    assert after.st_ino != before.st_ino
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (here / "f").iterdir()} == {0o600}


@posix
def test_new_folders_follow_the_umask(here):
    old = os.umask(0o027)
    try:
        files.write_folder(here / "new", {}, {"x": b"x"})
    finally:
        os.umask(old)
    assert stat.S_IMODE((here / "new").stat().st_mode) == 0o750
    assert {stat.S_IMODE(path.stat().st_mode) for path in (here / "new").iterdir()} == {0o640}


@posix
def test_new_folders_belong_to_the_group_of_a_shared_folder(here):
    (here / "shared").mkdir()
    (here / "shared").chmod(0o2770)
    if not (here / "shared").stat().st_mode & stat.S_ISGID:
        pytest.skip("a file system without such folders")
    (here / "shared" / "usual").mkdir()
    files.write_folder(here / "shared" / "new", {}, {"x": b"x"})
    assert (here / "shared" / "new").stat().st_mode == (here / "shared" / "usual").stat().st_mode


@posix
def test_a_file_keeps_its_permissions(here):
    (here / "x").write_bytes(b"old")
    (here / "x").chmod(0o600)
    files.write_file(here / "x", b"new")
    assert ((here / "x").read_bytes(), stat.S_IMODE((here / "x").stat().st_mode)) == (b"new", 0o600)


# Interruptions


@pytest.mark.parametrize("number", writing.ENDING)
def test_an_interruption_while_the_old_folder_is_removed(saffu, here, monkeypatch, number):
    """The change has been made: it is completed, the old counts are removed, and the message is true."""
    usual = shutil.rmtree

    def interrupted(path, **options):
        if (here / path / "config.json").exists():
            signal.raise_signal(number)
        usual(path, **options)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    result = saffu("update m b.txt")
    assert result.status == 128 + number
    assert package.load("m").trained_on_["documents"] == 61
    assert not list(here.glob(".*"))
    if number == signal.SIGINT:
        assert "interrupted, but" in result.err and "m had been written: it holds the new version" in result.err


def test_an_interruption_before_the_change(saffu, here, monkeypatch):
    before = state(here)
    monkeypatch.setattr(os, "fsync", lambda _: signal.raise_signal(signal.SIGINT))
    result = saffu("update m b.txt")
    assert (result.status, result.err) == (
        130,
        "saffu: interrupted; no partial output was left behind\n",
    )
    assert state(here) == before


@pytest.mark.parametrize("name", ["open", "mkdir"])
def test_an_interruption_while_a_lock_or_a_folder_is_made(saffu, here, monkeypatch, name):
    """Ctrl-C right after a call that made something: it is removed again."""
    usual, before = getattr(os, name), state(here)

    def interrupted(path, *arguments, **options):
        made = usual(path, *arguments, **options)
        if ".m.lock" in str(path) or ".m.writing-" in str(path):
            signal.raise_signal(signal.SIGINT)
        return made

    monkeypatch.setattr(os, name, interrupted)
    result = saffu("update m b.txt")
    assert (result.status, result.err) == (130, "saffu: interrupted; no partial output was left behind\n")
    assert state(here) == before


# Failures


def test_a_failure_after_the_change_says_that_it_was_made(saffu, here, monkeypatch):
    """As when standard output is a file on a full disk: whoever runs the command again would count the text twice."""
    from saffu.cli import living

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(living, "print_json", full)
    result = saffu("update m b.txt --json")
    assert result.status == 2
    assert "No space left on device" in result.err and "m had been written: it holds the new version" in result.err
    assert package.load("m").trained_on_["documents"] == 61


def test_an_old_version_that_cannot_be_removed_is_named(saffu, here, monkeypatch):
    """It holds what was to be forgotten."""

    usual = shutil.rmtree

    def fail(path, **options):
        if (Path(path) / "config.json").exists():
            raise OSError(errno.EIO, "Input/output error", str(path))
        usual(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fail)
        result = saffu("update m b.txt")
    left = next(here.glob(".m.writing-*"))
    assert result.status == 0 and "61 documents" in result.out
    assert f"{left.name}, the previous version, could not be removed; remove it yourself" in result.err
    assert saffu("update m b.txt").status == 0
    assert not list(here.glob(".*"))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, folders are exchanged in two steps")
def test_folders_are_not_exchanged_in_two_steps_after_an_error(here, monkeypatch):
    """Only where the file system cannot do it in one: a folder that is missing, however briefly, could be lost."""
    moved = []
    monkeypatch.setattr(Path, "rename", lambda *paths: moved.append(paths))
    with pytest.raises(OSError, match="No such file"):
        writing.exchange(here / "nothing", here / "m")
    assert moved == []


def test_what_a_killed_writer_of_a_file_has_left_is_removed(saffu, here):
    (here / ".vectors.txt.writing-0123456789ab").write_text("half")
    (here / ".vectors.txt.lock").touch()
    (here / ".vectors.txt.notes").write_text("mine")
    assert saffu("embed m --out vectors.txt").status == 0
    assert [path.name for path in here.glob(".*")] == [".vectors.txt.notes"]


def test_files_with_similar_names_stay(saffu, here):
    for name in (".m.writing-notes.txt", ".m.writing", ".m.writing-mine", ".xm.writing-01234abc"):
        (here / name).write_text("mine")
    checked = saffu("check m")
    assert (checked.status, checked.err) == (0, "")
    assert saffu("update m b.txt").status == 0
    assert [path.read_text() for path in here.glob(".*m.writing*")] == ["mine"] * 4


@pytest.mark.parametrize("line", ["train a.txt --out loop", "embed m --out loop", "update loop b.txt", "info loop"])
def test_a_link_that_leads_to_itself(saffu, here, line):
    (here / "loop").symlink_to("loop")
    result = saffu(line)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert "loop is a link that leads to itself" in result.err


@pytest.mark.parametrize("line", ["update f b.txt", "forget f part.txt", "train a.txt --force --out f " + QUICK])
def test_a_folder_that_is_write_protected_stays(saffu, here, monkeypatch, line):
    """Even if its parent is not: the old version could not be removed after it was replaced."""
    (here / "part.txt").write_text(sentences(1, 1)[0] + "\n")
    shutil.copytree("m", "f")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "f")  # root may write to all folders
    refused(saffu, here, line, "f is write-protected")


def test_an_empty_folder_that_cannot_be_removed_is_named(saffu, here, monkeypatch):
    """Whether a folder can be made is tried before the work."""

    def failing(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", failing)
        result = saffu(f"train b.txt --out new {QUICK} --quiet")
    left = list(here.glob(".new.writing-*"))
    assert result.status == 0 and left and all(path.name in result.err for path in left)
    assert "which is empty, could not be removed; remove it yourself" in result.err
    assert saffu("update new a.txt").status == 0
    assert not list(here.glob(".new.writing-*"))
