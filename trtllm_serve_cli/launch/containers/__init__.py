"""Plan servers in containers, and the requirements of models on other machines."""
