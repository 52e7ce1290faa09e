"""The only code that writes files: atomic files and folders, locks, journal, signals, fault points."""
