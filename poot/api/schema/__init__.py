"""What requests look like: one module an endpoint, each decoded strictly and checked as a whole."""
