"""Classify the lines in a server's log and find the causes of a failure."""
