"""The page of the exhibits, chapters/museum.md, from the data and the table; and what is wrong with the data."""

import re
from collections.abc import Sequence
from itertools import groupby

HEAD = """# The collection

This page is made by `tools/museum.py`, from `chapters/museum.yml` and the measured table.

{count} mistakes, each with the public threads where it happened: {threads} threads, read before they were
entered here. What a thread says is told in our words; its title is its own. Each mistake was planted again in a
small program, and given to the rules of {{doc}}`bugs` and to `examine`, in float32; those over several processes,
at the end, to `examine` alone. A rule *accepts* a mistake if it passes; a rule that refuses the right program in
the same setting is not counted. Where `examine` says `unnamed` or `more`, it has found something, and where it is,
for which it has no name.
"""
PUBLISHED = """## Published kernels

Triton kernels as they were published, run in Triton's interpreter on a processor and judged by
`examine` (`benchmarks/published.py`, whose record this is). Of a kernel nothing was changed but what is named: the
driver, which is asked for a chip. What a compiler or a GPU makes of them is not judged.

| kernel | case | `examine` says | changed |
| --- | --- | --- | --- |
"""
NOTES = {"rings": """Attention over several processes, each with its own tokens. Each exhibit is a case of
`tests/wild/rings_wrong.py`, written anew, and `examine` called it in float32 on as many processes as are named.
The rules of {doc}`bugs` have not been tried here, since they call a function of all tokens. Of these threads we
read the posts that a search had stored, not every one to its end.
"""}  # of a family
OPTIONAL = {"shows", "ranks"}
KEYS = {"name", "family", "title", "looks", "breaks", "threads", *OPTIONAL}
THREAD_KEYS = {"repo", "number", "kind", "title", "says"}
SHOWS = {  # what a problem needs, in words
    "mask": "a mask", "empty row": "a row without keys", "causal": "the causal mask, and more keys than queries",
    "bias": "a bias", "groups": "groups of heads", "dropout": "dropout", "scale": "a scale of its own",
    "long": "many keys, where the rule can afford them", "low scores": "scores far below zero",
    "wide values": "values wider than keys",
}


def page(exhibits: list[dict], table: dict, published: Sequence[dict] = ()) -> str:
    """The whole page; published: the record of benchmarks/published.py."""
    threads = {(t["repo"], t["number"]) for e in exhibits for t in e["threads"]}
    lines = [HEAD.format(count=len(exhibits), threads=len(threads))]
    for family, some in groupby(exhibits, key=lambda e: e["family"]):
        lines += [f"## {capital(family)}", "", *([NOTES[family]] if family in NOTES else [])]
        for entry in some:
            lines += exhibit(entry, table)
    if published:
        lines.append(PUBLISHED + "\n".join(map(published_row, published)))
    return "\n".join(lines).rstrip() + "\n"


def published_row(row: dict) -> str:
    """One kernel in one case, at a commit: the verdict, and what was found wrong."""
    link = f"[{row['repository']}](https://github.com/{row['repository']}/tree/{row['commit']})"
    wrong = "; ".join(f["title"] for f in row["findings"] if f["kind"] not in ("convention", "hazard"))
    said = f"{row['verdict']}, {row['problems']} problems" + (f": {escaped(wrong)}" if wrong else "")
    return f"| {link} | {row['case']}, {row['dtype']} | {said} | {row['patched']} |"


def exhibit(entry: dict, table: dict) -> list[str]:
    """One mistake: what is seen, where it happened, who accepts it, what it is called."""
    row = rows_of(table)[entry["name"]]
    lines = [f"### {capital(entry['title'])}", "", f"{entry['looks']} It breaks {{eq}}`{entry['breaks']}`.", ""]
    for t in entry["threads"]:
        link = f"https://github.com/{t['repo']}/{'pull' if t['kind'] == 'pull' else 'issues'}/{t['number']}"
        lines.append(f"- [{t['repo']}#{t['number']}]({link}), “{escaped(t['title'])}”: {t['says']}")
    if "ranks" in row:
        said = f"{row['verdict']}; {called(entry['name'], row)}"
        return [*lines, "", f"*`examine`, on {row['ranks']} processes:* {said}.", ""]
    fit = table["right"][row["shows"]]
    passing = [rule for rule, passed in row["accepted"].items() if passed and fit[rule]]
    has = " and ".join(SHOWS[word] for word in entry.get("shows", []))
    needs = f" (The problem has {has}.)" if has else ""
    return [*lines, "", f"*Accepted by:* {'; '.join(passing) or 'none of the rules'}.{needs}", "",
            f"*`examine`:* {row['verdict']}; {called(entry['name'], row)}.", ""]


def rows_of(table: dict) -> dict[str, dict]:
    """The row of each exhibit, by its name."""
    return {**table["mistakes"], **table.get("ranks", {})}


def called(name: str, row: dict) -> str:
    """What `examine` calls it."""
    given = [f"`{n}`" for n in row["named"]]
    return f"it says {', '.join(given)}" if given else "it names nothing"


def capital(text: str) -> str:
    """With a capital at its beginning, unless it begins with a letter of the book, as dQ."""
    return text if text[1:2].isupper() else text[0].upper() + text[1:]


def escaped(text: str) -> str:
    """A title as words: no mark-up of its own but code between backticks."""
    words = re.split(r"(`[^`]+`)", text)
    words[::2] = [re.sub(r"([\\`*_\[\]<>{}$|])", r"\\\1", word) for word in words[::2]]
    return "".join(words)


def faults(exhibits: list[dict], table: dict, labels: set[str], rules: list[str]):
    """What is wrong with the data."""
    names, rows = [e["name"] for e in exhibits], rows_of(table)
    yield from (f"{name}: twice" for name in {n for n in names if names.count(n) > 1})
    titles = [e["title"] for e in exhibits]
    yield from (f"{t}: two exhibits have this title" for t in {t for t in titles if titles.count(t) > 1})
    yield from (f"{n}: not measured" for n in names if n not in rows)
    yield from (f"{n}: measured, and not in the museum" for n in rows if n not in names)
    families = [family for family, _ in groupby(e["family"] for e in exhibits)]
    yield from (f"{f}: the family is not in one place" for f in {f for f in families if families.count(f) > 1})
    for e in exhibits:
        yield from (f"{e['name']}: {key}?" for key in (KEYS - OPTIONAL) - set(e) | set(e) - KEYS)
        yield from (f"{e['name']}: shows {word}?" for word in set(e.get("shows", [])) - set(SHOWS))
        if e["breaks"] not in labels:
            yield f"{e['name']}: no display {e['breaks']}"
        for t in e["threads"]:
            yield from (f"{e['name']}: {key}?" for key in set(t) ^ THREAD_KEYS)
            if not re.fullmatch(r"[\w.-]+/[\w.-]+", t["repo"]) or t["kind"] not in ("issue", "pull"):
                yield f"{e['name']}: {t['repo']} {t['kind']}"
        row = rows.get(e["name"])
        if row and row.get("ranks") != e.get("ranks"):
            yield f"{e['name']}: measured on another number of processes"
        elif row and "ranks" not in e and (
                list(row["accepted"]) != rules or row["shows"] != ", ".join(e.get("shows", []))):
            yield f"{e['name']}: measured with other rules, or in another setting"
        if row and row["family"] != e["family"]:
            yield f"{e['name']}: another family in the table"
