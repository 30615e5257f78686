"""The paper's network of self-attentive feed-forward units and its explicit solution. Start with `reference.py`."""
