"""The old name of `compress.predict.service`: MLflow models that version 0.1 registered import it."""

from compress.predict.service import Service as Service
