"""Plan servers in containers, and describe the requirements of models on other machines."""
