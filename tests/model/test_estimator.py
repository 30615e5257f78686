"""SaffuLM as an estimator: scikit-learn's tools, pickle, and copies."""

import copy
import pickle

import pytest

from conftest import CONFIGS
from saffu import SaffuLM
from saffu.errors import NotFittedError


def bits(lm, texts, y=None):
    return -lm.score(texts).bits_per_byte


def test_scikit_learn(fitted, train_text):
    sklearn = pytest.importorskip("sklearn", reason="pip install scikit-learn")
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV, cross_val_score
    from sklearn.utils.validation import check_is_fitted

    unfitted = clone(fitted("toy"))
    assert unfitted.config == fitted("toy").config
    check_is_fitted(fitted("toy"))
    with pytest.raises(sklearn.exceptions.NotFittedError, match="not fitted"):
        check_is_fitted(unfitted)
    scores = cross_val_score(unfitted, train_text, cv=3, scoring=bits)
    assert len(scores) == 3 and all(-3 < score < -0.1 for score in scores)
    settings = [CONFIGS["toy"](), type(CONFIGS["toy"]())(smoothing=1000.0)]
    search = GridSearchCV(unfitted, {"config": settings}, cv=3, scoring=bits).fit(train_text)
    assert search.best_params_ == {"config": settings[0]}
    assert search.best_estimator_.perplexity(train_text) < 10


def test_pipelines_score(fitted, dev_text):
    pipeline = pytest.importorskip("sklearn.pipeline", reason="pip install scikit-learn")
    scored = pipeline.Pipeline([("lm", fitted("toy"))]).score(dev_text)
    assert scored == fitted("toy").score(dev_text)


def test_settings_without_a_config_are_explained():
    with pytest.raises(TypeError, match=r"pass SaffuLM\(saffu\.CalibratedConfig\(order=3\)\)"):
        SaffuLM(order=3)


def test_pickle(lm, dev_text):
    again = pickle.loads(pickle.dumps(lm))
    assert again.score(dev_text).nll == pytest.approx(lm.score(dev_text).nll, rel=1e-6)
    assert (again.trained_on_, again.log_, repr(again)) == (lm.trained_on_, lm.log_, repr(lm))
    assert again.frequencies_.tolist() == lm.frequencies_.tolist()


def test_pickles_go_on_living(fitted, train_text, tmp_path):
    again = pickle.loads(pickle.dumps(fitted("calibrated")))
    assert again.forget(train_text[:2]) == 2
    again.save(tmp_path / "again")
    assert pickle.loads(pickle.dumps(SaffuLM.load(tmp_path / "again"))).trained_on_ == again.trained_on_


def test_pickles_keep_the_arguments_of_the_constructor(fitted, train_text):
    base = fitted("calibrated")
    mine = pickle.loads(pickle.dumps(SaffuLM(encoder=base).fit(train_text[:9])))
    assert mine.get_params()["encoder"].trained_on_ == base.trained_on_ and mine.get_params()["tokenizer"] is None
    again = mine.fit(train_text[:5])  # with the encoder, as before
    assert base.merge(again).trained_on_["documents"] == base.trained_on_["documents"] + 5
    assert pickle.loads(pickle.dumps(SaffuLM().fit(train_text[:9]))).get_params() == SaffuLM().get_params()


def test_unfitted_models_can_be_pickled():
    again = pickle.loads(pickle.dumps(SaffuLM(CONFIGS["calibrated"](), device="cpu")))
    assert again.config == CONFIGS["calibrated"]()
    with pytest.raises(NotFittedError):
        _ = again.model_


def test_copies(fitted, train_text):
    lm = fitted("calibrated")
    shallow = copy.copy(lm)
    assert shallow.model_ is lm.model_
    shallow.forget(train_text[:1])
    assert lm.trained_on_["documents"] == shallow.trained_on_["documents"] + 1
    assert copy.deepcopy(lm).perplexity(train_text[:9]) == pytest.approx(lm.perplexity(train_text[:9]))
