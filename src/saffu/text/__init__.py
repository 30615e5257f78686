"""Text: sources to lines, lines to token ids."""
