"""`export` as a stage: the file that other runtimes read, written beside the weights of a finished model."""
