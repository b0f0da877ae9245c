"""Whether what the explorer needs is installed."""

from importlib.util import find_spec

from smht.errors import UsageError


def check_extras(is_served: bool) -> None:
    """Make sure that a page can be made, before a model is loaded for it.

    Args:
        is_served: whether it is for a browser; a file takes less.

    Raises:
        UsageError: gradio or pillow is missing.
    """
    needed = {"PIL": "pillow", **({"gradio": "gradio"} if is_served else {})}
    missing = [name for module, name in needed.items() if not _is_there(module)]
    if missing:
        raise UsageError(f"the explorer needs {' and '.join(missing)}: pip install 'smht[explorer]'")


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:  # imports of it are blocked
        return False
