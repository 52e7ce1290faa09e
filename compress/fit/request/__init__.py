"""What is requested of a fit, and what can be requested."""
