"""What each engine kind writes into a model repository."""
