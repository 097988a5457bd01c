"""Code that commands share: output, options, exit codes, progress and the target server."""
