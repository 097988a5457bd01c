"""Plan servers in containers and describe the requirements for serving on other machines."""
