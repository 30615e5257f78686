"""The subcommands, in the order in which help lists them."""

from __future__ import annotations

from saffu.cli import (
    ablate,
    check,
    compare,
    complete,
    completion,
    download,
    embed,
    eval,
    explain,
    export,
    generate,
    info,
    living,
    pairs,
    play,
    report,
    reproduce,
    score,
    train,
)

MODELS = (
    train.COMMAND, living.UPDATE, living.FORGET, living.MERGE, info.COMMAND, check.COMMAND,
    export.COMMAND,
)  # fmt: skip
USES = (
    eval.COMMAND, score.COMMAND, generate.COMMAND, complete.COMMAND, explain.COMMAND, embed.COMMAND, pairs.COMMAND,
    play.COMMAND,
)  # fmt: skip
EXPERIMENTS = (download.COMMAND, reproduce.COMMAND, ablate.COMMAND, report.COMMAND, compare.COMMAND)
GROUPS = {"make and change models": MODELS, "use models": USES, "experiments": EXPERIMENTS}
GROUPS["the shell"] = (completion.COMMAND,)
COMMANDS = {command.name: command for group in GROUPS.values() for command in group}
