"""Counting and scoring on a Ray cluster: what one process would give, from tasks that may be lost and repeated."""
