"""compress: a workbench that makes BERT-family encoders smaller and faster, and measures what that costs."""

import os

__version__ = "0.1.0"

# Nobody asked to be counted: telemetry of the libraries below us is off unless the user turned it on.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "true")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
# The fast tokenizers use threads of their own; after a fork they would print a warning and fall back anyway.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
