"""What an export for transformers takes along: `modeling_saffu.py`, copied as it is. Nothing here is imported by saffu."""
