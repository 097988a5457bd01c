"""List and change the parameters of a repository, and track which engines are in use."""
