"""Stages of other people's pipelines; those whose package is not installed are skipped."""

import pickle

import pytest

import saffu
from conftest import sentences
from saffu.errors import SaffuError
from saffu.pipelines import COLUMNS, BatchScorer, Judge

GOOD = sentences(5, 6)
BAD = ["zxq vvk 88f plk mnb qqj", "4f 8e 1c 9d 0a 77", ""]
KEEP = "bits_per_byte<2.5"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pipelines") / "model"
    saffu.SaffuLM(saffu.CalibratedConfig(order=4, slots=2, word_classes=10)).fit(sentences(1, 600)).save(folder)
    return folder


def expected(folder, texts):
    return [vars(score) for score in saffu.load(folder).score_lines(texts)]


def test_columns_are_the_scores_of_the_texts(folder):
    columns = BatchScorer(folder)({"text": GOOD})
    assert columns == {name: [row[name] for row in expected(folder, GOOD)] for name in COLUMNS}
    remembered = BatchScorer(folder, "said", memory=True)({"said": GOOD})
    assert remembered["bits"] == [score.bits for score in saffu.load(folder).score_lines(GOOD, memory=True)]


def test_a_scorer_travels_without_its_model(folder):
    scorer = BatchScorer(folder)
    before = pickle.dumps(scorer)
    columns = scorer({"text": GOOD})
    assert pickle.dumps(scorer) == before and len(before) < 1000
    assert pickle.loads(before)({"text": GOOD}) == columns


def test_conditions_decide(folder):
    judge = Judge(BatchScorer(folder), [KEEP, "tokens>1"])
    assert [is_kept for _, is_kept in judge.rows(GOOD + BAD)] == [True] * 6 + [False] * 3
    assert [is_kept for _, is_kept in Judge(BatchScorer(folder)).rows(GOOD + BAD)] == [True] * 8 + [False]
    with pytest.raises(SaffuError, match="unknown column 'perplexed'; these rows have bits"):
        Judge(BatchScorer(folder), "perplexed<3")
    with pytest.raises(SaffuError, match="text 2 is not a string but 'NoneType'; convert or remove it"):
        judge.rows(["a", None])


def test_pandas(folder):
    pandas = pytest.importorskip("pandas", reason="pip install pandas")
    frame = pandas.DataFrame({"url": range(6), "text": GOOD}, index=range(10, 16))
    scored = frame.assign(**BatchScorer(folder)(frame))
    assert scored[COLUMNS].to_dict("records") == expected(folder, GOOD) and list(scored.url) == list(range(6))


def test_polars(folder):
    polars = pytest.importorskip("polars", reason="pip install polars")
    frame = polars.DataFrame({"url": range(6), "text": GOOD})
    scored = frame.hstack(polars.DataFrame(BatchScorer(folder)(frame)))
    assert scored.select(COLUMNS).to_dicts() == expected(folder, GOOD) and list(scored["url"]) == list(range(6))


def test_datasets(folder):
    datasets = pytest.importorskip("datasets", reason="pip install datasets")
    dataset = datasets.Dataset.from_dict({"url": range(6), "text": GOOD})
    scored = dataset.map(BatchScorer(folder), batched=True, batch_size=4)
    assert [{name: row[name] for name in COLUMNS} for row in scored] == expected(folder, GOOD)
    assert scored.filter(lambda row: row["bits_per_byte"] < 2.5)["url"][:] == list(range(6))


def test_datatrove(folder):
    data = pytest.importorskip("datatrove.data", reason="pip install datatrove")
    from saffu.pipelines.datatrove import SaffuFilter

    documents = [data.Document(text=text, id=str(n)) for n, text in enumerate(GOOD + BAD)]
    stage = pickle.loads(pickle.dumps(SaffuFilter(folder, KEEP, batch_size=4)))
    kept = list(stage.run(iter(documents)))
    assert [document.id for document in kept] == list("012345")
    assert [document.metadata for document in kept] == expected(folder, GOOD)
    assert stage.stats["dropped_saffu"].total == 3
    assert SaffuFilter(folder, KEEP).filter(documents[0]) is True


def test_nemo_curator(folder):
    tasks = pytest.importorskip("nemo_curator.tasks", reason="pip install nemo-curator")
    import pandas

    from saffu.pipelines.nemo_curator import SaffuStage

    frame = pandas.DataFrame({"url": range(9), "text": GOOD + BAD})
    stage = pickle.loads(pickle.dumps(SaffuStage(folder, KEEP)))
    stage.setup()
    kept = stage.process(tasks.DocumentBatch(dataset_name="crawl", data=frame))
    assert kept.dataset_name == "crawl" and list(kept.data.url) == list(range(6))
    assert kept.data[COLUMNS].to_dict("records") == expected(folder, GOOD)
    assert stage.inputs() == (["data"], ["text"]) and stage.outputs() == (["data"], ["text", *COLUMNS])
    empty = stage.process(tasks.DocumentBatch(dataset_name="none", data=frame[:0]))
    assert len(empty.data) == 0 and list(empty.data) == ["url", "text", *COLUMNS]
