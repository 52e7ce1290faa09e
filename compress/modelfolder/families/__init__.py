"""One file per model family: key and config maps both ways."""
