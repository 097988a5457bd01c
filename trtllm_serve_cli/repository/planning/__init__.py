"""Plan a model repository for one model, or combine several repositories for one server."""
