"""The page in a browser: Gradio's components around what `viewer` draws."""

from functools import partial
from typing import Any

import gradio as gr

from smht.explorer.generation_panel import build_generation, typed_of
from smht.explorer.head_changes import HELD, LIVE
from smht.explorer.markup import words
from smht.explorer.reading import Typed
from smht.explorer.section import Choice, Section
from smht.explorer.sections import SECTIONS
from smht.explorer.viewer import Part, Viewer
from smht.inspection import Drop

_MOST_BOXES = 24
# Of many keystrokes only the last is answered. What is chosen may be about a text that has changed since, which
# `Choice.keep` mends and Gradio's own check would refuse. Nothing is meant to be called by programs.
_LIVE: dict[str, Any] = {
    "trigger_mode": "always_last",
    "preprocess": False,
    "show_progress": "hidden",
    "api_visibility": "private",
}


def build_page(viewer: Viewer, text: str | None = None) -> gr.Blocks:
    """The page, not yet served.

    Args:
        viewer: of the models.
        text: what it opens with; the viewer's own if not given.

    Raises:
        UsageError: a text that a model cannot read.
    """
    names = " and ".join(subject.name for subject in viewer.subjects)
    with gr.Blocks(title=f"smht explorer: {names}", analytics_enabled=False) as page:
        gr.HTML(_header(viewer), apply_default_css=False, elem_id="header")
        typed = Typed(viewer.first_text if text is None else text)
        viewer.read(typed)
        inputs = _inputs(viewer, typed)
        view = viewer.view(typed)
        status = gr.HTML(_status(view.status), apply_default_css=False, elem_id="status")
        panels = [_Panel(section, part) for section, part in zip(SECTIONS, view.parts, strict=True)]
        if all(subject.writes for subject in viewer.subjects):
            _head("Going on", "Each token with the probability that the model gave it, before temperature and top-k.")
            build_generation(viewer, inputs)
        _connect(viewer, inputs, status, panels)
    return page


class _Panel:
    """One section's components."""

    def __init__(self, section: Section, part: Part) -> None:
        self.section = section
        _head(section.heading, section.lead)
        with gr.Row(elem_classes="choices"):
            self.dropdowns = [_dropdown(choice) for choice in part.choices]
        self.walks: list[tuple[gr.Button, gr.Dropdown, int]] = []
        walked = [pair for pair in zip(part.choices, self.dropdowns, strict=True) if pair[0].walks]
        if walked:
            with gr.Row(elem_classes="buttons"):
                for choice, dropdown in walked:
                    self._add_walk(choice.label.lower(), dropdown)
        self.figures = gr.HTML(part.html, apply_default_css=False, elem_id=section.name)

    def _add_walk(self, name: str, dropdown: gr.Dropdown) -> None:
        for word, by in (("Previous", -1), ("Next", 1)):
            self.walks.append((gr.Button(f"{word} {name}", size="sm", min_width=80), dropdown, by))

    @property
    def outputs(self) -> list[Any]:
        return [*self.dropdowns, self.figures]

    def updates(self, part: Part) -> list[Any]:
        """What to set `outputs` to."""
        if not part.choices:
            return [*[gr.skip()] * len(self.dropdowns), ""]
        dropdowns = [gr.Dropdown(choices=list(choice.options), value=choice.value) for choice in part.choices]
        return [*dropdowns, part.html]


def _dropdown(choice: Choice) -> gr.Dropdown:
    return gr.Dropdown(list(choice.options), value=choice.value, label=choice.label, min_width=140)


def _inputs(viewer: Viewer, typed: Typed) -> list[Any]:
    first = viewer.subjects[0]
    label = "Text" if first.tokenizer else f"Token ids, from 0 to {first.model.config.vocab_size - 1}"
    text = gr.Textbox(typed.text, label=label, lines=2, max_lines=8, elem_id="text")
    target = gr.Textbox(
        typed.target, label="Written so far", lines=1, max_lines=8, visible=first.has_two_stacks, elem_id="target"
    )
    return [text, target, *_switches(viewer)]


def _switches(viewer: Viewer) -> list[Any]:
    """What can be done to heads. Boxes to tick switch them off while they are few, lists to search do the rest."""
    names = list(dict.fromkeys(name for subject in viewer.subjects for name in subject.heads))
    heads = [name for name in names if any(isinstance(s.heads.get(name), Drop) for s in viewer.subjects)]
    with gr.Row(elem_classes="choices"):
        kind = _boxes if len(names) <= _MOST_BOXES else _names
        off = kind(names, label="Heads that are off", elem_id="off", scale=3, min_width=280)
        modes = [("live: of the edited run", LIVE), ("held: of the unedited run", HELD)]
        statistics = gr.Radio(modes, value=LIVE, label="Means and variances of LayerNorm", min_width=200)
    with gr.Row(elem_classes="choices"):
        frozen = _names(heads, label="Heads frozen at their mean over the text", elem_id="frozen", min_width=280)
        swapped = _names(heads, label="Heads that change places, two by two", elem_id="swapped", min_width=280)
        ways = [("where they write", "outputs"), ("their weights", "weights")]
        what = gr.Radio(ways, value="outputs", label="What they swap", min_width=200)
    return [off, frozen, swapped, what, statistics]


def _boxes(names: list[str], **options: Any) -> gr.CheckboxGroup:
    return gr.CheckboxGroup(names, value=[], **options)


def _names(names: list[str], **options: Any) -> gr.Dropdown:
    return gr.Dropdown(names, value=[], multiselect=True, **options)


def _head(heading: str, lead: str) -> None:
    html = f'<div class="smht"><h2>{words(heading)}</h2><p class="lead">{words(lead)}</p></div>'
    gr.HTML(html, apply_default_css=False)


def _connect(viewer: Viewer, inputs: list[Any], status: gr.HTML, panels: list[_Panel]) -> None:
    counts = [len(panel.dropdowns) for panel in panels]

    def look(*given: Any) -> list[Any]:
        typed, rest = typed_of(given[: len(inputs)]), list(given[len(inputs) :])
        values = [[rest.pop(0) for _ in range(count)] for count in counts]
        view = viewer.view(typed, values)
        pairs = zip(panels, view.parts, strict=True)
        return [_status(view.status), *(update for panel, part in pairs for update in panel.updates(part))]

    def choose(panel: _Panel, *given: Any) -> list[Any]:
        message, part = viewer.part(panel.section, typed_of(given[: len(inputs)]), given[len(inputs) :])
        return [_status(message), *panel.updates(part)]

    everything = [*inputs, *(dropdown for panel in panels for dropdown in panel.dropdowns)]
    outputs = [status, *(output for panel in panels for output in panel.outputs)]
    # Not `input`, which Gradio does not send for what is pasted.
    gr.on([component.change for component in inputs], look, everything, outputs, **_LIVE)
    for panel in panels:
        own = [*inputs, *panel.dropdowns]
        for dropdown in panel.dropdowns:
            dropdown.input(partial(choose, panel), own, [status, *panel.outputs], **_LIVE)
        for button, dropdown, by in panel.walks:
            walk = partial(_walk, viewer, panel, panel.dropdowns.index(dropdown), by, len(inputs))
            button.click(walk, own, [status, *panel.outputs], **_LIVE)


def _walk(viewer: Viewer, panel: _Panel, place: int, by: int, typed_count: int, *given: Any) -> list[Any]:
    typed, values = typed_of(given[:typed_count]), list(given[typed_count:])
    message, part = viewer.part(panel.section, typed, values)
    if part.choices:
        values[place] = part.choices[place].neighbour(values[place], by)
        message, part = viewer.part(panel.section, typed, values)
    return [_status(message), *panel.updates(part)]


def _status(html: str) -> str:
    return f'<div class="smht" role="status">{html}</div>'


def _header(viewer: Viewer) -> str:
    lines = "".join(
        f"<li><strong>{words(subject.name)}</strong>: {words(subject.description)}</li>" for subject in viewer.subjects
    )
    return f'<header class="smht"><h1>smht explorer</h1><ul>{lines}</ul></header>'
