"""The verbs of the command `saffu`, one file each: `add` declares its options, `run` parses, calls and prints."""
