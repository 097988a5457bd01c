"""The engine kinds: how each is built, served and deployed."""
