"""The command line: one file per command; the file name is the command."""
