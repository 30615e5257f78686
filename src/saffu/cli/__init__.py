"""The command `saffu`: one file per subcommand. Slow imports stay inside functions, so that help is quick."""
