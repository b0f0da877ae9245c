"""Gradio's components around `generation`: how tokens are chosen, and buttons for one, for several, and to stop."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from smht.errors import UsageError
from smht.explorer.generation import Continuation, added_text, begin, draw, extend
from smht.explorer.head_changes import LIVE, HeadChanges
from smht.explorer.markup import paragraph
from smht.explorer.reading import Typed
from smht.explorer.viewer import Viewer, side_by_side
from smht.tasks.generation import Sampling

_SETTINGS = Sampling(temperature=0.8, top_k=None, max_new_tokens=20, seed=0)
_MOST_TOKENS = 256
_AT_ONCE = 4
"""So many browsers may generate side by side."""


@dataclass(frozen=True)
class Growth:
    """The continuations of each model, and what they continue."""

    typed: Typed
    seed: int
    continuations: tuple[Continuation, ...]


class Generator:
    """The callbacks, which know nothing of the components.

    Args:
        viewer: of the models that go on writing.
    """

    def __init__(self, viewer: Viewer) -> None:
        self.viewer = viewer

    def one(self, typed: Typed, settings: Sampling, growth: Growth | None) -> tuple[Growth | None, str]:
        """One more token of each model: the new state, and what to show."""
        subjects = self.viewer.subjects
        if growth is None or growth.typed != typed or growth.seed != settings.seed:
            growth = Growth(typed, settings.seed, tuple(begin(settings.seed) for _ in subjects))
        try:
            grown = tuple(
                extend(subject, typed, so_far, settings)
                for subject, so_far in zip(subjects, growth.continuations, strict=True)
            )
        except UsageError as error:
            return None, self.refuse(error)
        growth = replace(growth, continuations=grown)
        return growth, self.draw(growth)

    def several(self, typed: Typed, settings: Sampling, growth: Growth | None) -> Iterator[tuple[Growth | None, str]]:
        """As many more as the settings say, one after the other, until all models have ended."""
        for _ in range(settings.max_new_tokens):
            growth, html = self.one(typed, settings, growth)
            yield growth, html
            if growth is None or all(so_far.has_ended for so_far in growth.continuations):
                return

    def draw(self, growth: Growth | None) -> str:
        """All continuations."""
        nothing = tuple(begin(0) for _ in self.viewer.subjects)
        grown = nothing if growth is None else growth.continuations
        return side_by_side([(s, draw(s, c)) for s, c in zip(self.viewer.subjects, grown, strict=True)])

    def refuse(self, error: UsageError) -> str:
        """What was asked for wrongly."""
        text = str(error)
        return f'<div class="smht" role="alert">{paragraph(text[:1].upper() + text[1:] + ".", "refusal")}</div>'

    def text_with(self, typed: Typed, growth: Growth | None) -> Typed:
        """What was typed and what the first model added to it."""
        if growth is None or growth.typed != typed:
            return typed
        added = added_text(self.viewer.subjects[0], growth.continuations[0])
        if self.viewer.subjects[0].has_two_stacks:
            return replace(typed, target=typed.target + added)
        return replace(typed, text=typed.text + added)


def typed_of(values: Sequence[Any]) -> Typed:
    """What stands in the page's first fields."""
    text, target, off, frozen, swapped, what, statistics = values
    off, frozen, swapped = (tuple(chosen or ()) for chosen in (off, frozen, swapped))
    return Typed(text or "", target or "", HeadChanges(off, frozen, swapped, what or "outputs", statistics or LIVE))


def settings_of(temperature: Any, top_k: Any, tokens: Any, seed: Any) -> Sampling:
    """What stands in the fields; an empty one means its default, and a top-k of 0 all tokens.

    Raises:
        UsageError: a value that makes no sense.
    """
    return Sampling(
        temperature=_SETTINGS.temperature if temperature is None else float(temperature),
        top_k=int(top_k) if top_k else None,
        max_new_tokens=int(_SETTINGS.max_new_tokens if tokens is None else tokens),
        seed=int(seed or 0),
    )


def build_generation(viewer: Viewer, inputs: list[Any]) -> None:
    """The components and what they do.

    Args:
        viewer: of models that all go on writing.
        inputs: the components of what is typed; the first two hold the text and what has been written so far.
    """
    generator = Generator(viewer)
    with gr.Row(elem_classes="choices"):
        temperature = gr.Slider(0, 2, _SETTINGS.temperature, step=0.1, label="Temperature", min_width=140)
        top_k = gr.Number(0, label="Top-k, 0 for all", precision=0, min_width=140)
        tokens = gr.Slider(1, _MOST_TOKENS, _SETTINGS.max_new_tokens, step=1, label="Tokens to add", min_width=140)
        seed = gr.Number(_SETTINGS.seed, label="Seed", precision=0, min_width=140)
    with gr.Row(elem_classes="buttons"):
        one = gr.Button("One token", size="sm", min_width=90)
        several = gr.Button("Several tokens", size="sm", min_width=90)
        stop = gr.Button("Stop", size="sm", min_width=90)
        over = gr.Button("Start over", size="sm", min_width=90)
        take = gr.Button("Take over as text", size="sm", min_width=90)
    shown = gr.HTML(generator.draw(None), apply_default_css=False, elem_id="generation")
    growth = gr.State(None)

    def grow(*given: Any) -> Iterator[tuple[Growth | None, str]]:
        typed, (*fields, so_far, is_single) = typed_of(given[: len(inputs)]), given[len(inputs) :]
        try:
            settings = settings_of(*fields)
        except UsageError as error:
            yield so_far, generator.refuse(error)
            return
        settings = replace(settings, max_new_tokens=1) if is_single else settings
        yield from generator.several(typed, settings, so_far)

    def take_over(*given: Any) -> tuple[str, str]:
        both = generator.text_with(typed_of(given[:-1]), given[-1])
        return both.text, both.target

    fields = [*inputs, temperature, top_k, tokens, seed, growth]
    options: dict[str, Any] = {
        "show_progress": "hidden",
        "api_visibility": "private",
        "concurrency_limit": _AT_ONCE,
        "concurrency_id": "generation",
    }
    started: list[Any] = [
        button.click(grow, [*fields, gr.State(is_single)], [growth, shown], **options)
        for button, is_single in ((one, True), (several, False))
    ]
    stop.click(None, cancels=started, api_visibility="private")
    over.click(lambda: (None, generator.draw(None)), None, [growth, shown], cancels=started, api_visibility="private")
    take.click(take_over, [*inputs, growth], inputs[:2], show_progress="hidden", api_visibility="private")
