"""Helpers that several commands share: output, options, exit codes, progress and target servers."""
