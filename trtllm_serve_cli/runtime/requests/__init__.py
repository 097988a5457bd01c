"""Handle requests from arrival to the last response: cancellation, records and responses."""
