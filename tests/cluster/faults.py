"""Two nodes, one of which dies; a driver that is killed; nodes that are not ready. Run by `make test-cluster`."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from cluster.test_pages import BLOCKS
from cluster.test_ray import SMALL, content
from cluster.test_ray import folder as folder
from conftest import sentences
from saffu import SaffuLM
from saffu.cluster import engine

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


@pytest.fixture
def nodes():
    """A cluster of two simulated nodes, each with one processor."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": engine.OBJECT_STORE})
    cluster.add_node(num_cpus=1, object_store_memory=engine.OBJECT_STORE, resources={"second": 1})
    yield cluster
    cluster.shutdown()


def test_two_nodes_give_what_one_process_gives(folder, saffu, nodes):
    assert saffu(f"train text --out alone {SMALL}").status == 0
    done = saffu(f"train text --out model {SMALL} --ray {nodes.address}")
    assert done.status == 0, done.err
    assert content(folder / "model") == content(folder / "alone")


def test_a_node_that_dies_while_counting_changes_nothing(folder, saffu, nodes, monkeypatch):
    """The second node is killed by a task that runs on it: the task is lost, with whatever else was there."""
    usual = engine.on_node()

    def deadly(version, kept, module, name, item):
        import signal
        from pathlib import Path

        import ray

        died = Path(kept).parent.parent.parent / "died"
        here = {node["NodeID"]: node["Resources"] for node in ray.nodes()}[ray.get_runtime_context().get_node_id()]
        if name == "count_stretch" and "second" in here and not died.exists():
            died.write_text(kept)
            os.kill(os.getppid(), signal.SIGKILL)  # the raylet, and
            os.kill(os.getpid(), signal.SIGKILL)  # its worker: the node is gone
        return usual(version, kept, module, name, item)

    monkeypatch.setattr(engine, "on_node", lambda: deadly)
    assert saffu(f"train text --out alone {SMALL}").status == 0
    monkeypatch.setattr("saffu.cluster.train.BYTES", 1 << 20)  # many tasks
    done = saffu(f"train text --out model {SMALL} --ray {nodes.address}")
    assert done.status == 0, done.err
    assert Path((folder / "died").read_text()).parent.name == "counts"
    assert content(folder / "model") == content(folder / "alone")


DRIVER = """
import os, secrets, signal, sys
from saffu.cluster import engine, counts
secrets.token_bytes = lambda size: bytes(range(size))
counts.BYTES = 1 << 20  # many tasks
usual = engine.Cluster.map
def map(self, stage, work, items, *more, **options):
    place = self.folder / stage
    left = sum(not (place / f"{n:06d}.json").exists() for n in range(len(items)))
    print(stage, left, len(items), file=sys.stderr)
    finish = self._finish
    def killed(ready):
        finish(ready)
        if stage == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGKILL)
    self._finish = killed
    return usual(self, stage, work, items, *more, **options)
engine.Cluster.map = map
from saffu.cli.main import main
main(sys.argv[2:])
"""


def drive(folder, die_in, line):
    command = [sys.executable, "-c", textwrap.dedent(DRIVER), die_in, *line.split()]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_a_driver_that_is_killed_goes_on_where_it_stopped(folder, saffu):
    assert saffu(f"train text --out alone {SMALL}").status == 0
    line = f"train text --out model {SMALL} --ray"
    killed = drive(folder, "counts", line)
    assert killed.returncode == -signal.SIGKILL
    assert not (folder / "model").exists()
    kept = folder / ".model.ray"
    assert len(list((kept / "counts").glob("*.json"))) >= 1 and len(list((kept / "tokens").glob("*.json"))) >= 1
    done = drive(folder, "none", line)
    assert done.returncode == 0, done.stderr
    left = {stage: (int(count), int(of)) for stage, count, of in stages_of(done.stderr)}
    assert left["tokens"][0] == left["words"][0] == left["survey"][0] == 0
    assert 0 < left["counts"][0] < left["counts"][1]
    assert content(folder / "model") == content(folder / "alone")
    assert not kept.exists()
    assert not [path for path in engine.scratch_place().glob(f"{engine.SCRATCH}*") if orphaned(path)]


def stages_of(output):
    rows = [line.split() for line in output.splitlines()]
    return [row for row in rows if len(row) == 3 and row[1].isdigit()]


def orphaned(path):
    return not engine.is_running(int(path.name.removeprefix(engine.SCRATCH).split("-")[0]))


def test_a_changed_text_begins_anew(folder, saffu):
    line = f"train text --out model {SMALL} --ray"
    assert drive(folder, "words", line).returncode == -signal.SIGKILL
    with (folder / "text" / "1.txt").open("a") as file:
        file.write("one more line\n")
    done = drive(folder, "none", line)
    assert done.returncode == 0, done.stderr
    assert {stage: count for stage, count, _ in stages_of(done.stderr)}["survey"] != "0"
    assert saffu(f"train text --out alone {SMALL}").status == 0
    assert content(folder / "model") == content(folder / "alone")


def test_scores_that_are_finished_are_kept(folder, saffu):
    assert saffu(f"train text --out model {SMALL}").status == 0
    line = "score model text --json --out scores --ray"
    assert drive(folder, "scores", line).returncode == -signal.SIGKILL
    first = {path.name: path.stat().st_mtime_ns for path in (folder / "scores").iterdir() if path.suffix == ".jsonl"}
    assert first
    assert drive(folder, "none", line).returncode == 0
    found = sorted((folder / "scores").glob("*.jsonl"))
    assert len(found) == 4
    assert all(path.stat().st_mtime_ns == first.get(path.name, path.stat().st_mtime_ns) for path in found)
    for number, path in enumerate(found):
        alone = saffu(f"score model text/{number}.txt --json").out.splitlines()
        assert [json.loads(row) for row in path.read_text().splitlines()] == [json.loads(row) for row in alone]
    refused = saffu("score model text --out scores --ray")
    assert refused.status == 2 and "scores is not empty" in refused.err


def test_nodes_that_are_not_ready_are_named(folder, saffu, nodes, monkeypatch):
    monkeypatch.setattr("saffu.__version__", "0.0.1")
    refused = saffu(f"train text --out model {SMALL} --ray {nodes.address}")
    assert refused.status == 2
    assert "but this is 0.0.1; install the same version on every node" in refused.err
    assert len(refused.err.splitlines()) == 1
    refused = saffu(f"train text --out model {SMALL} --ray 127.0.0.1:1")
    assert refused.status == 2 and "no Ray cluster at 127.0.0.1:1" in refused.err


def test_a_corrupt_shard_is_named(folder, saffu, nodes):
    (folder / "text" / "9.txt").write_bytes(b"caf\xe9\n" * 3)
    refused = saffu(f"train text --out model {SMALL} --ray {nodes.address}")
    assert refused.status == 2
    assert "9.txt is not UTF-8 at line 1, byte 3" in refused.err and len(refused.err.splitlines()) == 1
    assert sorted(path.name for path in folder.iterdir()) == ["text"]
    done = saffu(f"train text --out model {SMALL} --skip-bad-files --ray {nodes.address}")
    assert done.status == 0 and "skipped 1 bad file" in done.err
    assert saffu(f"train text --out alone {SMALL} --skip-bad-files").status == 0
    assert content(folder / "model") == content(folder / "alone")


def test_models_counted_on_a_cluster_live_on(folder, saffu, nodes):
    """Update and forget give equal folders too."""
    (folder / "more.txt").write_text("the old king saw a tree .\nthe cat liked the sea .\n")
    assert saffu(f"train text --split line --out alone {SMALL}").status == 0
    assert saffu(f"train text --split line --out model {SMALL} --ray {nodes.address}").status == 0
    for name in ("alone", "model"):
        assert saffu(f"update {name} more.txt").status == 0
    assert content(folder / "model") == content(folder / "alone")
    for name in ("alone", "model"):
        assert saffu(f"forget {name} more.txt").status == 0
    assert content(folder / "model") == content(folder / "alone")


def test_ray_data_keeps_what_the_model_likes(folder, saffu):
    """The lines of docs/scale.md."""
    import ray

    assert saffu(f"train text --split line --out model {SMALL}").status == 0
    texts = [*sentences(7, 40), "xq zzv kkw pq", "qqq rrr 123 %%"]
    (folder / "crawl").mkdir()
    for number in (0, 1):
        rows = [json.dumps({"id": n, "text": text}) for n, text in enumerate(texts) if n % 2 == number]
        (folder / "crawl" / f"{number}.jsonl").write_text("\n".join(rows) + "\n")
    ray.init("local", num_cpus=3, object_store_memory=2 * engine.OBJECT_STORE, log_to_driver=False)
    try:
        exec(next(block for block in BLOCKS if "ray.data" in block), {})
    finally:
        ray.shutdown()
    kept = [json.loads(row) for path in (folder / "clean").glob("*.json*") for row in path.read_text().splitlines()]
    expected = {n: score.bits_per_byte for n, score in enumerate(SaffuLM.load("model").score_lines(texts))}
    found = {row["id"]: row["bits_per_byte"] for row in kept}  # which pandas rounds to ten digits
    assert found == pytest.approx({n: bits for n, bits in expected.items() if bits < 1.9}, abs=1e-9)
    assert 0 < len(kept) < len(texts)


def test_a_part_is_counted_with_the_encoder_of_another(folder, saffu, nodes):
    assert saffu(f"train text --split line --hold-out 0 --out base {SMALL}").status == 0
    (folder / "part.txt").write_text("\n".join(sentences(9, 200)) + "\n")
    assert saffu("train part.txt --encoder base --hold-out 0 --out alone").status == 0
    done = saffu(f"train part.txt --encoder base --hold-out 0 --out model --ray {nodes.address}")
    assert done.status == 0, done.err
    assert content(folder / "model") == content(folder / "alone")
    assert saffu("merge base model --out both").status == 0
