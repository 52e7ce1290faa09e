"""The old name of `compress.predict.service`: MLflow models that version 0.1 registered import it."""

from compress.import_paths import use_installed_evaluation

use_installed_evaluation()

from compress.predict.service import Service as Service  # noqa: E402
