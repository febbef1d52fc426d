"""The numbers of a figure's caption, and those that the figure's cell asserts.

A number is written in digits, in a formula, or in words: *a twentieth*, *two thirds*,
*tenfold*, *fifteen*. *One*, *zero* and places in an order (*the second*) are no numbers here.
"""

import ast
import math
import re

UNITS = ("two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
         " seventeen eighteen nineteen twenty").split()
CARDINALS = {word: k for k, word in enumerate(UNITS, 2)}
CARDINALS |= {"thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6}
PARTS = {"half": 2, "halves": 2, "quarter": 4, "third": 3, "fifth": 5, "eighth": 8, "ninth": 9, "twelfth": 12}
PARTS |= {word + "th": k for word, k in {**CARDINALS, **SCALES}.items() if word not in ("two", "three", "five")}
PARTS |= {word[:-1] + "ieth": k for word, k in CARDINALS.items() if word.endswith("ty")}
PARTS |= {word + "s": k for word, k in PARTS.items()}
FOLD = {"twice": 2, "twofold": 2, "threefold": 3, "fourfold": 4, "fivefold": 5, "tenfold": 10, "hundredfold": 100}


def _any(words) -> str:
    return "|".join(sorted(words, key=len, reverse=True))


COUNT = rf"(?:(?:{_any(CARDINALS)}|a|one)[\s-]+)?(?:(?:{_any(SCALES)})\b\s*)+|{_any(CARDINALS)}"
WORDS = re.compile(
    rf"(?<![\w-])(?:(?P<mixed>(?:{_any(CARDINALS)}|one)\s+and\s+a\s+half)"
    rf"|(?:(?P<top>{_any(CARDINALS)}|one|an?)[\s-]+)(?P<part>{_any(PARTS)})|(?P<half>half|halves|quarter)"
    rf"|(?P<fold>{_any(FOLD)})|(?P<count>{COUNT}))(?![\w-])(?P<unit>\s+(?:digits|percent|per cent))?", re.I)
DIGITS = re.compile(
    r"(?<![\w.])(?P<x>\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?:\s*(?:\\cdot|\\times)\s*(?P<base>10))?"
    r"(?:\^\{?(?P<power>-?\d+)\}?)?(?:/(?P<below>\d+))?(?P<unit>\s*(?:digits|percent|per cent|%))?")
RAISED = re.compile(r"(?<=[A-Za-z)}])\^(\{[^{}]*\}|\w)|_(\{[^{}]*\}|\w)|\\(?!cdot|times)[A-Za-z]+(?=\s*\d)")


def numbers(caption: str) -> list[tuple[str, float, str]]:
    """(words, value, unit) for each number of a caption."""
    text = re.sub(r"\$([^$]*)\$", lambda m: RAISED.sub(" ", m[1]), caption)
    found = []
    for m in DIGITS.finditer(text):
        x = float(m["x"].replace(",", "").rstrip("."))
        if m["power"]:
            x = x * 10.0 ** int(m["power"]) if m["base"] else x ** int(m["power"])
        found.append((m[0], x / float(m["below"] or 1), (m["unit"] or "").strip()))
    for m in WORDS.finditer(text):
        found.append((m[0], _value(m), (m["unit"] or "").strip()))
    return found


def _value(m: re.Match) -> float:
    if m["mixed"]:
        return CARDINALS.get(m["mixed"].split()[0].lower(), 1) + 0.5
    if m["part"] or m["half"]:
        return CARDINALS.get((m["top"] or "").lower(), 1) / PARTS[(m["part"] or m["half"]).lower()]
    if m["fold"]:
        return FOLD[m["fold"].lower()]
    words = re.split(r"[\s-]+", m["count"].lower())
    return math.prod({**CARDINALS, **SCALES}.get(word, 1) for word in words)


def unasserted(caption: str, source: str) -> list[str]:
    """The numbers of a caption, as they stand there, that the cell does not assert."""
    try:
        known = asserted(ast.parse(source))
    except SyntaxError:
        known = set()
    found = ((words.strip(), {_rounded(y) for y in _forms(x, unit)}) for words, x, unit in numbers(caption))
    return [words for words, forms in found if not known & forms]


def asserted(cell: ast.Module) -> set[float]:
    """The numbers in a cell's assertions, and in what it makes their names of."""
    claims = [part for node in ast.walk(cell) if isinstance(node, ast.Assert) for part in _claims(node.test)]
    made = [pair for node in ast.walk(cell) for pair in _makes(node)]
    used = set().union(*map(_names, claims)) if claims else set()
    while True:
        found = [value for names, value in made if names & used]
        more = used.union(*map(_names, found)) if found else used
        if more == used:
            return {_rounded(x) for node in [*claims, *found] for x in _constants(node)}
        used = more


def _claims(test: ast.AST) -> list[ast.AST]:
    """What an assertion compares with something that was computed; `17 == 17` claims nothing."""
    if isinstance(test, (ast.BoolOp, ast.UnaryOp)):
        return [part for side in ast.iter_child_nodes(test) for part in _claims(side)]
    if isinstance(test, ast.Compare):
        sides = [test.left, *test.comparators]
        pairs = [pair for pair in zip(sides, sides[1:]) if any(map(_names, pair))]
        return [side for pair in pairs for side in pair]
    return [test] if _names(test) else []


def _makes(node: ast.AST) -> list[tuple[set, ast.AST]]:
    """The names that a part of a program gives a value to, and that value."""
    if isinstance(node, ast.Assign):
        return [(_names(target), node.value) for target in node.targets]
    if isinstance(node, (ast.AugAssign, ast.NamedExpr)):
        return [(_names(node.target), node.value)]
    if isinstance(node, (ast.For, ast.comprehension)):
        return [(_names(node.target), node.iter)]
    if isinstance(node, ast.FunctionDef):
        return [({node.name}, node)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
        return [(_names(node.func.value), argument) for argument in node.args]
    return []


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _constants(node: ast.AST) -> list[float]:
    """The numbers in a program, those also that numbers alone are computed to, as 10**-8."""
    found = []
    for part in ast.walk(node):
        if isinstance(part, (ast.Constant, ast.UnaryOp, ast.BinOp)) and not _names(part):
            try:
                x = eval(compile(ast.Expression(part), "a number", "eval"), {"__builtins__": {}})
            except Exception:  # of a part that is no number
                continue
            if isinstance(x, (int, float)) and not isinstance(x, bool):
                found.append(float(x))
    return found


def _forms(x: float, unit: str) -> list[float]:
    """A number as an assertion may have it: itself, its inverse, a part of a hundred, a number of digits."""
    found = [x, 1 / x] if x else [x]
    return found + {"digits": [10.0**-x], "": []}.get(unit, [x / 100])


def _rounded(x: float) -> float:
    return float(f"{abs(x):.9g}")
