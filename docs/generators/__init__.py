"""One module per page, or per group of tables, that is generated from the code."""
