"""Attacks on the command and on model folders, for minutes or hours: `make torture MINUTES=5`.

Each module is one kind of attack, an endless iterator of its attempts. An attempt succeeds for us if the command ends
as it promises: with its result, or with one line and status 2; and if no model is lost, broken, or silently different.
"""
