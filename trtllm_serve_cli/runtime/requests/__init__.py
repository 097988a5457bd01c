"""Requests from their arrival to their last response: in flight, cancelled, recorded, answered."""
