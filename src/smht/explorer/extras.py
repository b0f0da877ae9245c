"""Whether what the explorer needs is installed."""

from smht.errors import UsageError, first_line


def check_extras() -> None:
    """Make sure that a page can be made, before a model is loaded for it.

    Raises:
        UsageError: gradio or pillow is missing.
    """
    try:
        import gradio
        import PIL

        del gradio, PIL
    except ImportError as error:
        raise UsageError(
            f"the explorer needs gradio and pillow ({first_line(error)}): pip install 'smht[explorer]'"
        ) from None
