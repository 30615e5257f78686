"""The log of a training run, as people read it."""

from types import SimpleNamespace

from conftest import each
from saffu.cli.output import Log, columns

ROW = {
    "stage": "train 100%", "step": 1_234_567, "counted_bits_per_byte": 1.25, "network_bits_per_byte": 1.5,
    "train_perplexity": 1234.5, "dev_perplexity": 1234.5, "dev_bits_per_byte": 1.25, "tokens_per_second": 123_456,
    "seconds": 98_765.4,
}  # fmt: skip
KINDS = [{"backprop": False}, {"backprop": True}, {"backprop": True, "network": True}]
SAMPLES = {
    "<sod><eod><sod> the small\tdog" + " saw a house" * 9 + "…<sod>a king<eod>": "the small",
    "<sod>" + "東京都" * 40 + "<eod>": "東京都",
    "": "",
}


@each("kind", KINDS)
@each("width", [80, 81, 120, 300])
def test_a_row_fits_the_terminal(kind, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    log = Log(SimpleNamespace(json=False, quiet=False), **kind)
    for sample in SAMPLES:
        log.row({**ROW, "sample": sample})
    head, *rows = capsys.readouterr().out.splitlines()
    place = head.index("sample")
    for row, shown in zip(rows, SAMPLES.values(), strict=True):
        assert columns(row) < width and "<" not in row
        assert row[place:].startswith(shown) and row[: place - 2] == rows[0][: place - 2]


def test_a_narrow_terminal_shows_no_sample(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "50")
    log = Log(SimpleNamespace(json=False, quiet=False), backprop=False)
    for sample in SAMPLES:
        log.row({**ROW, "sample": sample})
    assert all(len(line) < 50 for line in capsys.readouterr().out.splitlines())
