"""Plan servers in containers, and describe what models need on other machines."""
