"""List and change a repository's parameters. Track which engines are in use."""
