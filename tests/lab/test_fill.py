"""Numbers, files, and computed parts between the markers of a page."""

import json

import pytest

from lab.fill import filled
from saffu.errors import SaffuError


def test_markers_are_filled_in(tmp_path):
    found = {"a case": {"fit_s": [2.5, 2.04], "tokens_per_s": [980.4, 1234.5], "tokens": 1500}, "date": "2026-01-02"}
    (tmp_path / "bench.json").write_text(json.dumps(found))
    (tmp_path / "demo.txt").write_text("$ saffu\n")
    for marker, expected in {
        "bench.a_case.fit_s": "2.0",
        "bench.a_case.fit_s 3": "2.04",
        "bench.a_case.tokens_per_s": "1,230",
        "bench.a_case.tokens": "1,500",
        "bench.a_case.tokens 2/1e3": "1.5",
        "bench.a_case.tokens 2/bench.a_case.fit_s": "740",
        "bench.date": "2026-01-02",
    }.items():
        assert filled(f"| <!--{marker}-->old<!----> |", tmp_path, {}) == f"| <!--{marker}-->{expected}<!----> |"
    page = "a <!-- part -->old<!-- /part -->\n<!--file demo.txt-->\n{}<!--/file-->\n"
    assert filled(page.format("old"), tmp_path, {}) == page.format("```\n$ saffu\n```\n")
    with pytest.raises(KeyError):
        filled("a <!--bench.speed-->1<!---->", tmp_path, {})
    with pytest.raises(ValueError, match="line that begins"):
        filled("<!--bench.date-->1<!---->", tmp_path, {})
    with pytest.raises(SaffuError, match="no part <!-- n -->"):
        filled("nothing here", tmp_path, {"n": ""})
