"""Handle requests from their arrival to their last response."""
