"""`compress fit`: the best model within a budget of megabytes and milliseconds, and a certificate of what it is."""
