"""What an export for transformers takes along: `modeling_saffu.py`, copied as it is; saffu never imports it."""
