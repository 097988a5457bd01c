"""Define how each engine kind is built, served and deployed."""
