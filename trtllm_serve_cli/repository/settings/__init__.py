"""List and change a repository's parameters, and track which engines are in use."""
