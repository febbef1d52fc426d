"""What an examination says about something planted, in one word; shared by tests and benchmarks."""

from attnmath import examine

WORDS = "named", "not named", "named wrongly", "missed"


def examined(planted, dtype, seed=3, told=True):
    return examine(
        planted.fn, planted.backward, options=planted.options, layout=planted.layout, dtype=dtype, seed=seed,
        conventions=planted.conventions if told else None, smallest=False, progress=False,
    )  # fmt: skip


def names(report):
    """What is named, in the order of the report."""
    return list(dict.fromkeys(f.name for f in report.findings if f.kind in ("mistake", "contract")))


def word(report, *planted):
    """Whether what was planted is named, and nothing else is."""
    if report.right:
        return "missed"
    found, right = set(names(report)), {name for p in planted for name in (p.name, *p.also)}
    return "named wrongly" if found - right else "named" if found else "not named"
