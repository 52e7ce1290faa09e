"""`compress cascade`: models that answer in turn, joined into one folder and certified."""
