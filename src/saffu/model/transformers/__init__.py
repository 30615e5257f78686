"""Exported models inside transformers: `modeling_saffu.py` is copied into every export, the rest stays in saffu."""
