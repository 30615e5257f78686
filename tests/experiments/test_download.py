"""Corpora are downloaded from a server in this process and read as they unpack, under their official names."""

import hashlib
import io
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from saffu.errors import SaffuError
from saffu.experiments import download
from saffu.experiments.download import Archive, fetch_babylm, find_splits
from saffu.text.sources import find_files

NAMES_2023 = ["aochildes", "bnc_spoken", "cbt", "children_stories", "gutenberg", "open_subtitles", "qed"]
NAMES_2023 += ["simple_wikipedia", "switchboard", "wikipedia"]
NAMES_2024 = ["bnc_spoken", "childes", "gutenberg", "open_subtitles", "simple_wiki", "switchboard"]


def text(name, split):
    return (f"{name} {split} and more\n" * 30).encode()


def zipped(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def official_2023():
    members = {
        "babylm_data/": b"",
        "__MACOSX/babylm_data/babylm_10M/._cbt.train": b"junk",
        "babylm_data/README.md": b"#",
    }
    for folder, split in [("10M", "train"), ("100M", "train"), ("dev", "dev"), ("test", "test")]:
        members |= {f"babylm_data/babylm_{folder}/{name}.{split}": text(name, folder) for name in NAMES_2023}
    return {"babylm_data.zip": zipped(members)}


def official_2024():
    files = {"train_10M": "train", "train_100M": "train", "dev": "dev", "test": "test"}
    return {
        f"{folder}.zip": zipped({f"{folder}/{name}.{split}": text(name, folder) for name in NAMES_2024})
        for folder, split in files.items()
    }


class Host:
    """A web host of some files: it can break off, forget how to resume, or fail."""

    def __init__(self, files):
        self.files, self.ranges, self.break_after, self.resumes, self.status = files, [], None, True, 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                content = outer.files.get(self.path.strip("/"))
                asked = self.headers.get("Range")
                outer.ranges.append(asked)
                if content is None or outer.status != 200:
                    self.send_error(404 if content is None else outer.status)
                    return
                tag = f'"{hashlib.sha256(content).hexdigest()[:8]}"'
                begin = 0
                if asked and outer.resumes and self.headers.get("If-Range", tag) == tag:
                    begin = int(asked.removeprefix("bytes=").removesuffix("-"))
                    if begin >= len(content):
                        self.send_error(416)
                        return
                self.send_response(206 if begin else 200)
                self.send_header("Content-Length", str(len(content) - begin))
                self.send_header("ETag", tag)
                self.end_headers()
                self.wfile.write(content[begin : outer.break_after])

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def sources(self, year):
        address = f"http://127.0.0.1:{self.server.server_port}"
        return {
            year: {split: Archive(a.name, f"{address}/{a.name}") for split, a in download.SOURCES[year].items()},
        }


@pytest.fixture
def host():
    hosts = []

    def begin(files):
        hosts.append(Host(files))
        return hosts[-1]

    yield begin
    for one in hosts:
        one.server.shutdown()
        one.server.server_close()


@pytest.mark.parametrize("size", ["10M", "100M"])
@pytest.mark.parametrize(
    ("year", "files", "names"), [(2023, official_2023, NAMES_2023), (2024, official_2024, NAMES_2024)]
)
def test_fetch(host, tmp_path, year, files, names, size):
    served = host(files())
    manifest = fetch_babylm(year, size, tmp_path / "babylm", sources=served.sources(year))
    assert sorted(path.name for path in (tmp_path / "babylm").iterdir()) == ["babylm.json", "dev", "test", "train"]
    for split, folder in [("train", size), ("dev", "dev"), ("test", "test")]:
        unpacked = tmp_path / "babylm" / split
        assert sorted(path.name for path in unpacked.iterdir()) == [f"{name}.{split}" for name in names]
        folder = f"train_{folder}" if year == 2024 and split == "train" else folder
        assert (unpacked / f"{names[0]}.{split}").read_bytes() == text(names[0], folder)
    for name, recorded in manifest["archives"].items():
        assert recorded["sha256"] == hashlib.sha256(served.files[name]).hexdigest()
    asked = len(served.ranges)
    assert asked == len(manifest["archives"])
    assert fetch_babylm(year, size, tmp_path / "babylm", sources=served.sources(year)) == manifest
    assert len(served.ranges) == asked  # nothing is requested again
    with pytest.raises(SaffuError, match="choose another `out`"):
        fetch_babylm(year, "10M" if size == "100M" else "100M", tmp_path / "babylm", sources=served.sources(year))


def test_what_a_killed_download_has_unpacked_is_removed(host, tmp_path, monkeypatch):
    served = host(official_2023())
    out = tmp_path / "babylm"

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(download, "unpack", killed)
        patch.setattr(download, "remove", lambda *_: None)  # which a killed process cannot do
        with pytest.raises(KeyboardInterrupt):
            fetch_babylm(2023, "10M", out, sources=served.sources(2023))
    assert (out / download.UNPACKING).is_dir()
    fetch_babylm(2023, "10M", out, sources=served.sources(2023))
    assert sorted(path.name for path in out.iterdir()) == ["archives", "babylm.json", "dev", "test", "train"]


@pytest.mark.parametrize("resumes", [True, False])
@pytest.mark.parametrize("changed", [True, False])
def test_a_broken_download_is_resumed(host, tmp_path, resumes, changed):
    served = host(official_2023())
    served.break_after, served.resumes = 1000, resumes
    with pytest.raises(SaffuError, match="closed the connection after 1,000 of"):
        fetch_babylm(2023, "10M", tmp_path, sources=served.sources(2023))
    assert (tmp_path / "archives" / "babylm_data.zip.part").stat().st_size == 1000
    assert not (tmp_path / "train").exists()
    served.break_after = None
    if changed:
        served.files = {"babylm_data.zip": served.files["babylm_data.zip"] + b"a longer comment"}
    manifest = fetch_babylm(2023, "10M", tmp_path, sources=served.sources(2023))
    assert served.ranges == [None, "bytes=1000-"]
    expected = hashlib.sha256(served.files["babylm_data.zip"]).hexdigest()
    assert manifest["archives"]["babylm_data.zip"]["sha256"] == expected


def test_a_part_that_was_whole(host, tmp_path):
    served = host(official_2023())
    (tmp_path / "archives").mkdir()
    (tmp_path / "archives" / "babylm_data.zip.part").write_bytes(served.files["babylm_data.zip"])
    fetch_babylm(2023, "10M", tmp_path, sources=served.sources(2023))
    assert served.ranges[-1] is None  # first the rest was requested, then the whole
    assert (tmp_path / "train").is_dir()


def test_a_run_that_was_stopped_between_two_folders(host, tmp_path, monkeypatch):
    served = host(official_2023())
    usual = Path.rename

    def stopped(path, target):
        if target == tmp_path / "dev":
            raise KeyboardInterrupt
        return usual(path, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "rename", stopped)
        fetch_babylm(2023, "10M", tmp_path, sources=served.sources(2023))
    assert (tmp_path / "train").is_dir() and not (tmp_path / "dev").exists()
    fetch_babylm(2023, "10M", tmp_path, sources=served.sources(2023))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archives", "babylm.json", "dev", "test", "train"]


def test_no_network(host, tmp_path):
    served = host(official_2024())
    sources = served.sources(2024)
    served.server.shutdown()
    served.server.server_close()
    with pytest.raises(
        SaffuError, match=r"cannot download train_10M\.zip from 127\.0\.0\.1.*by hand, save it as"
    ) as error:
        fetch_babylm(2024, "10M", tmp_path, sources=sources)
    assert len(str(error.value).splitlines()) == 1
    for name, content in served.files.items():  # as the message says
        (tmp_path / "archives" / name).write_bytes(content)
    manifest = fetch_babylm(2024, "10M", tmp_path, sources=sources, keep_archives=True)
    assert [len(manifest["files"][split]) for split in ("train", "dev", "test")] == [6, 6, 6]
    assert (tmp_path / "archives" / "dev.zip").exists()


@pytest.mark.parametrize(("status", "message"), [(404, "may have moved"), (503, "try again later")])
def test_errors_of_the_host(host, tmp_path, status, message):
    served = host(official_2024())
    served.status = status
    with pytest.raises(SaffuError, match=f"answers {status} .*{message}"):
        fetch_babylm(2024, "10M", tmp_path, sources=served.sources(2024))


def test_checksums(host, tmp_path):
    served = host(official_2024())
    sources = served.sources(2024)
    known = download.SOURCES[2024]["train 10M"]
    sources[2024]["train 10M"] = Archive(known.name, sources[2024]["train 10M"].url, md5=known.md5)
    with pytest.raises(SaffuError, match="not the published"):
        fetch_babylm(2024, "10M", tmp_path, sources=sources)
    assert not (tmp_path / "train").exists()
    manifest = fetch_babylm(2024, "10M", tmp_path, sources=sources, accept_changed=True)
    assert manifest["archives"]["train_10M.zip"]["md5"] == hashlib.md5(served.files["train_10M.zip"]).hexdigest()


def damaged(content):
    at = len(content) // 2
    return content[:at] + bytes(byte ^ 0xFF for byte in content[at : at + 40]) + content[at + 40 :]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>please log in</html>", "not a zip file"),
        (damaged(official_2024()["train_10M.zip"]), "corrupt"),
        (zipped({"notes.md": b"#"}), r"has no \.train files"),
    ],
)
def test_damaged_archives(host, tmp_path, content, message):
    served = host(official_2024() | {"train_10M.zip": content})
    with pytest.raises(SaffuError, match=message):
        fetch_babylm(2024, "10M", tmp_path, sources=served.sources(2024))
    assert [path.name for path in tmp_path.iterdir()] == ["archives"]


def test_an_archive_writes_nowhere_else(host, tmp_path):
    evil = zipped({"../../evil.train": b"a\n", "/etc/evil2.train": b"b\n"})
    served = host(official_2024() | {"train_10M.zip": evil})
    fetch_babylm(2024, "10M", tmp_path / "deep" / "babylm", sources=served.sources(2024))
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*evil*")}
    assert found == {"deep/babylm/train/evil.train", "deep/babylm/train/evil2.train"}


def test_existing_folders_are_never_overwritten(host, tmp_path):
    served = host(official_2024())
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "thesis.tex").write_text("years of work")
    with pytest.raises(SaffuError, match="already exists"):
        fetch_babylm(2024, "10M", tmp_path, sources=served.sources(2024))
    assert served.ranges == []


def unzip(files, folder):
    for content in files.values():
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            archive.extractall(folder)


def test_official_layouts_are_read_as_they_unpack(tmp_path):
    unzip(official_2023(), tmp_path / "a")
    with pytest.raises(SaffuError, match="both sizes"):
        find_splits(tmp_path / "a")
    found = find_splits(tmp_path / "a", "10M")
    assert [path.name for path in found["train"]] == [f"{name}.train" for name in NAMES_2023]
    assert {path.parent.name for path in found["train"]} == {"babylm_10M"}
    assert {path.parent.name for path in found["dev"]} == {"babylm_dev"}
    unzip({"x": official_2024()["train_10M.zip"], "y": official_2024()["dev.zip"]}, tmp_path / "b")
    assert [len(files) for files in find_splits(tmp_path / "b").values()] == [6, 6]
    with pytest.raises(SaffuError, match="no training text of 100M"):
        find_splits(tmp_path / "b", "100M")
    for split in ("train", "dev"):
        (tmp_path / "c" / split).mkdir(parents=True)
        (tmp_path / "c" / split / "a.txt").write_text("a b\n")
    assert [len(files) for files in find_splits(tmp_path / "c", "10M").values()] == [1, 1]
    with pytest.raises(SaffuError, match=r"neither \*\.train"):
        find_splits(tmp_path / "c" / "train")
    unzip({"x": official_2024()["train_10M.zip"], "y": official_2024()["dev.zip"]}, tmp_path / "runs_100M")
    assert len(find_splits(tmp_path / "runs_100M", "10M")["train"]) == 6  # its own name says nothing
    with pytest.raises(SaffuError, match="no corpus in"):
        find_splits(tmp_path / "d")


def test_folders_of_a_split_are_found(tmp_path):
    unzip(official_2023(), tmp_path)
    folder = tmp_path / "babylm_data"
    assert [path.name for path in find_files([folder / "babylm_10M"])] == [f"{name}.train" for name in NAMES_2023]
    with pytest.raises(SaffuError, match=r"holds \.train and \.dev and \.test files"):
        find_files([folder])
