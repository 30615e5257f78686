"""The paper's network of self-attentive feed-forward units and its explicit solution. See also `reference/paper.py`."""
