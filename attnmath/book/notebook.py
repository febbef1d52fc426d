"""What a chapter's cells need: the style of figures, the lines of functions, a judge of exercises and checks."""

import ast
import inspect
import re
import textwrap
from contextlib import contextmanager
from fractions import Fraction
from itertools import zip_longest
from pathlib import Path

import numpy as np

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
        "axes.axisbelow": True,
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
    """The lines of a function that are its formula, as Markdown with a link to the whole of it."""
    from IPython.display import Markdown

    function = inspect.unwrap(function)
    package = function.__module__.partition(".")[0]
    parts = Path(inspect.getsourcefile(function)).parts
    start = len(parts) - 1 - parts[::-1].index(package) if package in parts else -1
    path = "/".join(parts[start:])
    return Markdown(f"```python\n{formula(function)}\n```\n\n[{path}](../{path})")


def formula(function):
    """The source of a function without decorators, annotations and docstring."""
    source = textwrap.dedent(inspect.getsource(function))
    body = ast.parse(source).body[0].body
    first = body[isinstance(getattr(body[0], "value", None), ast.Constant)]
    lines = source.rstrip().split("\n")[first.lineno - 1:]
    plain = [p.replace(annotation=p.empty) for p in inspect.signature(function).parameters.values()]
    return "\n".join([f"def {function.__name__}{inspect.Signature(plain)}:", *lines])


@contextmanager
def answer(hint):
    """Judge what stands above in an exercise: say that it is right, or give a hint in place of a traceback."""
    try:
        yield
    except Exception as error:
        said = str(error).partition("\n")[0].partition("; allowed")[0]    # that number is the processor's
        said = "it is still None" if "NoneType" in said else said
        print(f"Not yet. {hint}" + f" ({said})" * bool(said))
    else:
        print("Right.")


def within(what, bound, *errors):
    """Say what was compared, and the bound that none of the errors exceeds; raise if one does."""
    worst = max(float(abs(np.asarray(error)).max()) for error in errors)
    if not worst <= bound:
        raise AssertionError(f"{what}: off by {worst:.1e}, more than {bound:g}")
    print(f"{what}: off by less than {bound:g}")


def matrices(named):
    """Print matrices side by side, each under its name, with their entries as fractions."""
    blocks = []
    for name, X in named.items():
        rows = [[_as_fraction(x) for x in row] for row in np.reshape(X, (len(X), -1))]
        width = [max(map(len, column)) for column in zip(*rows)]
        lines = ["  ".join(x.rjust(w) for x, w in zip(row, width)) for row in rows]
        wide = max(map(len, [name, *lines]))
        blocks.append([line.ljust(wide) for line in [name, *lines]])
    for parts in zip_longest(*blocks):
        print("     ".join(x or " " * len(block[0]) for x, block in zip(parts, blocks)).rstrip())


def _as_fraction(x):
    return str(Fraction(float(x)).limit_denominator(1000)) if np.isfinite(x) else str(float(x))


def draw_values(ax, P, V, do, gain):
    """One query's picture: values as discs as large as their weights, the output, and the arrow do.

    P (m,), V (m, 2), do (2,), gain (m,): on whose side of the output the loss grows with the score.
    """
    o = P @ V
    reach = 0.3 * np.ptp(V, axis=0).max()
    along = do / np.hypot(*do) * reach
    across = np.array([-along[1], along[0]]) * 4
    ax.plot(*np.transpose([o - across, o + across]), color="#777777", lw=1, ls="--")
    for j, (v, weight, grows) in enumerate(zip(V, P, gain > 0), 1):
        ax.scatter(*v, s=200 + 2400 * weight, c=PALETTE[0] if grows else PALETTE[1], zorder=3)
        ax.text(*v, "+" if grows else "−", color="white", ha="center", va="center", fontsize=15, zorder=4)
        ax.annotate(f"$v_{j}$", v, (0, 10 + 20 * weight**0.5), textcoords="offset points",
                    ha="center", va="bottom", bbox={"fc": "white", "ec": "none", "pad": 2}, zorder=2.5)
    ax.annotate("", o + along, o, arrowprops={"arrowstyle": "-|>", "lw": 2.2, "color": "black"}, zorder=5)
    ax.text(*(o + 1.25 * along), "$do$", ha="center", va="center")
    ax.scatter(*o, s=60, marker="D", c="black", zorder=5)
    ax.annotate("$o$", o, -14 * along / reach, textcoords="offset points", ha="center", va="center")
    low, high = V.min(axis=0) - 0.8 * reach, V.max(axis=0) + reach
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    ax.set_axis_off()


def as_table(text):
    """A table in Markdown, each line of which is a row."""
    from IPython.display import Markdown

    rows = text.split("\n")
    if not all(row.startswith("| ") and row.endswith(" |") for row in rows):
        raise ValueError("a table has a row in each line, from | to |")
    return Markdown(text)
