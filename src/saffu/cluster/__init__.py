"""Counting and scoring on a Ray cluster: the results of one process, from tasks that may be lost and repeated."""
