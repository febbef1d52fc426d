"""What a chapter's cells need to show things: the style of figures and the source of functions."""

import inspect
import re
from pathlib import Path

# The palette of Okabe and Ito, told apart with any colour vision; darkest first, each with
# its own dash, so that a figure also reads without colour.
PALETTE = ("#0072B2", "#D55E00", "#007A5A", "#9C4F7F", "#000000", "#B07D00")
DASHES = ("-", "--", "-.", ":", (0, (1, 1)), (0, (5, 1, 1, 1)))


def book_style():
    """Set matplotlib for the book: vector figures that are the same, byte for byte, at each run."""
    import matplotlib as mpl
    from cycler import cycler
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    _name_by_rounded_numbers()
    mpl.rcdefaults()
    set_matplotlib_formats("svg", metadata={"Date": None, "Creator": None})
    mpl.rcParams.update({
        "svg.hashsalt": "attnmath",
        "figure.figsize": (6.0, 3.4),
        "figure.constrained_layout.use": True,
        "figure.facecolor": "white",
        "font.size": 11,
        "mathtext.fontset": "cm",
        "axes.prop_cycle": cycler(color=PALETTE) + cycler(linestyle=DASHES),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#dddddd",
        "grid.linewidth": 0.6,
        "image.cmap": "cividis",
        "image.interpolation": "nearest",
        "legend.frameon": False,
        "lines.linewidth": 1.8,
    })


def _name_by_rounded_numbers():
    """Names inside of an SVG are hashes of numbers, the last digits of which differ between processors."""
    from matplotlib.backends.backend_svg import RendererSVG

    make = RendererSVG._make_id
    if make.__module__ == __name__:
        return

    def make_id(self, kind, content):
        numbers = re.sub(r"-?\d+\.\d+(e[-+]?\d+)?", lambda x: f"{round(float(x[0]), 6) + 0.0:.6f}", str(content))
        return make(self, kind, numbers)

    RendererSVG._make_id = make_id


def show(function):
    """The function's own source with its file's name, as Markdown that every reader renders."""
    from IPython.display import Markdown

    function = inspect.unwrap(function)
    package = function.__module__.partition(".")[0]
    parts = Path(inspect.getsourcefile(function)).parts
    start = len(parts) - 1 - parts[::-1].index(package) if package in parts else -1
    source = inspect.cleandoc("\n" + inspect.getsource(function)).rstrip()
    fence = "```"
    while fence in source:
        fence += "`"
    return Markdown(f"`{'/'.join(parts[start:])}`\n\n{fence}python\n{source}\n{fence}")


def as_table(text):
    """A table in Markdown, each line of which is a row."""
    from IPython.display import Markdown

    rows = text.split("\n")
    if not all(row.startswith("| ") and row.endswith(" |") for row in rows):
        raise ValueError("a table has a row in each line, from | to |")
    return Markdown(text)
