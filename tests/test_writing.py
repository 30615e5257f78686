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
from conftest import each, part, sentences
from saffu import SaffuError, files, writing
from saffu.commit import commit

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


@each("kind", FOREIGN)
@each(
    "line",
    [
        f"train a.txt --out f {QUICK}",
        "merge m n --out f",
        "export m --out f",
        f"train a.txt --tokenizer m --out f {QUICK}",
    ],
)
def test_a_foreign_folder_is_never_replaced(saffu, here, line, kind):
    shutil.copytree("m", "n", dirs_exist_ok=True)
    shutil.rmtree("f", ignore_errors=True)
    (here / "f").mkdir()
    for name, text in FOREIGN[kind].items():
        (here / "f" / name).write_text(text)
    refused(saffu, here, line, "f is not empty")
    refused(saffu, here, f"{line} --force", "will not replace f: it is not a saved model")


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
        f"train m/{part(here / 'm', 'log.jsonl').name} --field stage --out {name} --force",
    ):
        refused(saffu, here, line, "is also an input (m")


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
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert stat.S_IMODE((here / "f" / "config.json").stat().st_mode) == 0o640  # as the folder, without execution


@posix
def test_new_folders_follow_the_umask(here):
    old = os.umask(0o027)
    try:
        commit(here / "new", {}, {"x": b"x"})
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
    commit(here / "shared" / "new", {}, {"x": b"x"})
    assert (here / "shared" / "new").stat().st_mode == (here / "shared" / "usual").stat().st_mode


@posix
def test_a_file_keeps_its_permissions(here):
    (here / "x").write_bytes(b"old")
    (here / "x").chmod(0o600)
    files.write_file(here / "x", b"new")
    assert ((here / "x").read_bytes(), stat.S_IMODE((here / "x").stat().st_mode)) == (b"new", 0o600)


# Interruptions


def test_an_interruption_before_the_change(saffu, here, monkeypatch):
    before = state(here)
    monkeypatch.setattr(os, "fsync", lambda _: signal.raise_signal(signal.SIGINT))
    result = saffu("update m b.txt")
    assert (result.status, result.err) == (
        130,
        "saffu: interrupted; no partial output was left behind\n",
    )
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


def test_what_a_killed_writer_of_a_file_has_left_is_removed(saffu, here):
    (here / ".vectors.txt.writing-0123456789ab").write_text("half")
    (here / ".vectors.txt.lock").touch()
    (here / ".vectors.txt.notes").write_text("mine")
    assert saffu("embed m --out vectors.txt").status == 0
    assert [path.name for path in here.glob(".*")] == [".vectors.txt.notes"]


def test_files_with_similar_names_stay(saffu, here):
    names = (".sums.writing-notes.txt", ".sums.writing", ".sums.writing-mine", "sums-notes.safetensors")
    for name in names:
        (here / "m" / name).write_text("mine")
    checked = saffu("check m")
    assert (checked.status, checked.err) == (0, "")
    assert saffu("update m b.txt").status == 0
    assert [(here / "m" / name).read_text() for name in names] == ["mine"] * 4


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
