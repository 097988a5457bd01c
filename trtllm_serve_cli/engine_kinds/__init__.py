"""Define how engines of each kind are built, served and deployed."""
