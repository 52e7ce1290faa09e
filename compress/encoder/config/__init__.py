"""What an encoder looks like: frozen descriptions, checked. Imports no torch."""
