"""Where Python looks for packages: those installed with this one come first, whatever the working directory holds.

Nothing that the working directory could stand in for is imported here before its entry is gone from `sys.path`.
"""

from __future__ import annotations

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
"""The folder that holds this package and `evaluation`: site-packages, or a checkout."""
EVALUATION = "evaluation"


def leave_out_working_directory() -> None:
    """Remove the entry of `sys.path` that `python -m` puts first: the working directory.

    Its files and folders would be imported instead of installed packages of the same name. The entry stays where this
    package itself was imported from it.
    """
    if not sys.flags.safe_path and sys.path and _is_working_directory(sys.path[0]):
        del sys.path[0]


def prefer_installed() -> None:
    """Move the working directory to the end of `sys.path`, where PYTHONPATH names it, and import our `evaluation`.

    Raises UserError where another package of that name was imported before.
    """
    here = [entry for entry in sys.path if _is_working_directory(entry)]
    if here:
        sys.path[:] = [*(entry for entry in sys.path if entry not in here), *here]
    use_installed_evaluation()


def use_installed_evaluation() -> None:
    """Import the `evaluation` that is installed with this package, whatever comes first on `sys.path`.

    Modules that only another package of that name has can still be imported. Raises UserError where that package was
    imported before.
    """
    folder = os.path.join(ROOT, EVALUATION)
    if EVALUATION in sys.modules:
        _require_ours(folder)
        return
    import importlib.util
    import pkgutil

    spec = importlib.util.spec_from_file_location(
        EVALUATION, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__path__ = pkgutil.extend_path(module.__path__, EVALUATION)
    sys.modules[EVALUATION] = module
    spec.loader.exec_module(module)


def _require_ours(folder: str) -> None:
    """Raise UserError unless the `evaluation` that is imported lies in `folder`."""
    loaded = sys.modules[EVALUATION]
    found = list(getattr(loaded, "__path__", ()))
    if os.path.realpath(folder) in map(os.path.realpath, found):
        return
    from compress.errors import UserError

    raise UserError(
        f"another package named '{EVALUATION}' is already imported",
        where=str(found[0] if found else getattr(loaded, "__file__", None)),
        why=f"compress needs its own, {folder}",
        do=f"import compress and call one of its functions first, or rename the other '{EVALUATION}'",
    )


def _is_working_directory(entry: str) -> bool:
    """Whether an entry of `sys.path` means the working directory, and this package was not imported from there."""
    try:
        return os.path.samefile(entry or ".", ".") and not os.path.samefile(entry or ".", ROOT)
    except OSError:  # no such folder, or the working directory was deleted
        return False
