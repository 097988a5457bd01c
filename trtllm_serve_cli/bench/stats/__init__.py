"""The formulas: one request's times, the statistics of many, and their confidence."""
