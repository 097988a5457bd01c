"""Code that several commands use: output, options, exit codes, progress and target servers."""
