"""The table of results on text that decided nothing."""

from lab.held_out import table


def test_measures_of_one_model_and_text_share_a_row():
    model = {"train": "Penn Treebank, train", "networks": 7, "seconds": 307.7}
    accuracy = {**model, "text": "pairs", "measure": "mean accuracy", "value": 0.7375}
    perplexity = {**model, "text": "test", "measure": "perplexity", "value": 52.79}
    rows = [accuracy, {**accuracy, "measure": "counted mean accuracy", "value": 0.5}, perplexity, {"text": "no model"}]
    found = table(rows).splitlines()[2:]
    assert [line.split(" | ")[2] for line in found] == [
        "mean accuracy 73.75%; counted mean accuracy 50.00% |",
        "perplexity 52.79 |",
    ]
