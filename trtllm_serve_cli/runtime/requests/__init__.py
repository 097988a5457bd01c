"""Requests from arrival to last response: tracking, cancellation, records and responses."""
