"""A model folder as an MLflow model of the flavour `python_function`, for `mlflow models serve`.

The model is code (a short file) and the folder itself: nothing is pickled. Who loads it runs that code, and needs this
package.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import yaml

from compress.storage import atomic, manifest
from compress.storage.trees import drop_names, second_names
from compress.tracking.store import import_mlflow

CODE = '''"""How MLflow answers with this model: `compress` reads the model folder beside this file."""

from pathlib import Path

import pandas
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel


class Model(PythonModel):
    def load_context(self, context):
        from compress.import_paths import use_installed_evaluation

        use_installed_evaluation()  # a server may have a folder of that name in its working directory
        from compress.predict.service import Service

        self.service = Service(Path(context.artifacts["model"]))

    def predict(self, context, model_input: pandas.DataFrame, params=None):
        from compress.errors import UserError

        try:
            return self.service.answer(model_input)
        except UserError as error:  # a server answers with this line; of other errors it sends the traceback
            raise MlflowException.invalid_parameter_value(str(error)) from error


set_model(Model())
'''
FILE, MLMODEL = "model_code.py", "MLmodel"


def write_pyfunc(
    folder: Path,
    target: Path,
    columns: Sequence[tuple[str, bool]],
    *,
    replace: bool = False,
    needed: Sequence[str] | None = None,
) -> Path:
    """Write `target`: an MLflow model of the model folder `folder`, with a copy of it in `artifacts/<its name>`.

    columns: (name, needed) of the texts it reads.  needed: packages; None: those of the folder. Raises UserError when
    `target` exists, unless `replace` and it is a folder that we wrote.
    """
    import_mlflow()
    from mlflow.models import ModelSignature
    from mlflow.pyfunc import save_model as fill
    from mlflow.types import ColSpec, DataType, Schema
    from pandas import DataFrame

    reads = Schema([ColSpec(DataType.string, name, required=needed) for name, needed in columns])
    with (
        tempfile.TemporaryDirectory() as scratch,
        atomic.new_folder(target, replace=replace) as temp,
        warnings.catch_warnings(action="ignore"),  # mlflow's advice on type hints and examples
    ):
        code = Path(scratch) / FILE
        atomic.write_text(code, CODE)
        fill(
            path=str(temp),
            python_model=str(code),
            artifacts={"model": str(folder)},
            signature=ModelSignature(inputs=reads),
            input_example=DataFrame([{name: "some text" for name, required in columns if required}]),
            pip_requirements=requirements(folder) if needed is None else list(needed),
        )
        drop_names(temp / "artifacts" / Path(folder).name, second_names(folder))  # which were copied as files
        said = (temp / MLMODEL).read_text(encoding="utf-8")  # paths of this machine mean nothing on another
        said = said.replace(str(code), FILE).replace(str(folder), Path(folder).name)
        atomic.write_text(temp / MLMODEL, said)
    return Path(target)


def write_loader(target: Path, folder: Path, columns: Sequence[tuple[str, bool]]) -> Path:
    """Write the new folder `target`: the files that make an MLflow model of the model folder `folder` once they lie
    beside its own, so that `mlflow.pyfunc.load_model` opens it where it is. Returns `target`.

    columns: (name, needed) of the texts it reads.
    """
    with tempfile.TemporaryDirectory() as scratch:
        nothing = Path(scratch) / "nothing"
        nothing.mkdir()
        written = write_pyfunc(nothing, Path(scratch) / "model", columns, needed=requirements(folder))
        described = yaml.safe_load((written / MLMODEL).read_text(encoding="utf-8"))
        described["flavors"]["python_function"]["artifacts"]["model"] = {"path": ".", "uri": "."}
        target.mkdir()
        for file in written.iterdir():
            if file.is_file() and file.name not in (MLMODEL, manifest.NAME):
                atomic.write_bytes(target / file.name, file.read_bytes())
        atomic.write_text(target / MLMODEL, yaml.safe_dump(described, sort_keys=False))
    return target


def requirements(folder: Path) -> list[str]:
    """What a fresh environment needs to answer: this package, and torch and MLflow as they are here."""
    names = ["compress-bert", "torch", "mlflow"]
    if any(next(folder.glob(file), None) for file in ("model.onnx", "stage-*/model.onnx")):
        names += ["onnx", "onnxruntime"]
    found = []
    for name in names:
        try:
            found.append(f"{name}=={metadata.version(name).partition('+')[0]}")
        except metadata.PackageNotFoundError:
            found.append(name)  # run from a checkout
    return found
