"""A matplotlib figure that shows itself in a notebook without pyplot, and becomes part of a page."""

import io
import re

from matplotlib import rc_context
from matplotlib.figure import Figure

INK, FAINT = "#010203", "#040506"  # stand for the page's own colours, which differ by day and night


class Picture(Figure):
    """A figure without pyplot's global state: nothing to close, nothing leaks."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=110)
        return buffer.getvalue()


def to_svg(figure: Figure, alt: str) -> str:
    """The figure as an SVG element in the page's own ink.

    ``alt``: what it shows, for those who cannot see it; unlike that of any other picture of the page, since the names
    of its parts come of it.
    """
    from html import escape

    for panel in figure.axes:
        _ink(panel)
    figure.patch.set_alpha(0.0)
    buffer = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": alt}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    page = buffer.getvalue()
    start, end = page.find("<metadata>"), page.find("</metadata>")  # names of vocabularies, which read as links
    page = page[page.index("<svg") : start] + page[end + len("</metadata>") :]
    page = re.sub(r"<style.*?</style>", "", page, flags=re.DOTALL)  # would hold for the whole page
    page = re.sub(r' id="[a-zA-Z]+[\w.]*_\d+"', "", page)  # figure_1 and the like, in every picture the same
    page = page.replace(INK, "currentColor").replace(FAINT, "var(--line)")
    page = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 system-ui, sans-serif", page)
    # hundredths of a point are below any screen's grain, and those of a label, between tags, are not
    page = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(-?\d+\.\d{2})\d+", r"\1", tag[0]), page)
    return page.replace("<svg ", f'<svg role="img" aria-label="{escape(alt, quote=True)}" ', 1)


def _ink(panel) -> None:
    panel.patch.set_alpha(0.0)
    panel.tick_params(color=FAINT, labelcolor=INK)
    for spine in panel.spines.values():
        spine.set_edgecolor(FAINT)
    for text in (panel.title, panel.xaxis.label, panel.yaxis.label):
        text.set_color(INK)
    if panel.get_legend() is not None:
        for text in panel.get_legend().get_texts():
            text.set_color(INK)
