"""What commands share: output, options, exit codes, progress, and the server they address."""
