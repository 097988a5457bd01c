"""Plan a model repository, for one model or for several in one server."""
