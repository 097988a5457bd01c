"""Plan the Triton models of a repository in each layout."""
