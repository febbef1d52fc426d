"""What a code cell may not do, and what it must assert: the numbers of its figure's caption.

A cell shows nothing that nobody runs, and gives no public name to something else. A number of a caption is
written in digits, in a formula, or in words: *a twentieth*, *two thirds*, *tenfold*, *fifteen*. *One*, *zero*
and places in an order (*the second*) are no numbers here.
"""

import ast
import math
import re
from collections.abc import Iterator
from pathlib import Path

import attnmath

SHOWS = re.compile(  # other outputs than text, pictures and what the book's notebook module makes
    r"^\s*%+\w+|\bIPython\b|\bget_ipython\b|\bdisplay_pub\b|\bdisplay\s*\(|\b_repr_|\btext/(latex|markdown|html)\b"
    r"|\bapplication/|\b(sympy|pandas)\b|\b__(wrapped|code|module)__|\bglobals\s*\(", re.M)
NOTEBOOK = Path(attnmath.__file__).with_name("book") / "notebook.py"  # what cells import; it is not run here
TAKEN = {one.name: "attnmath.book.notebook" for one in ast.parse(NOTEBOOK.read_text(encoding="utf-8")).body
         if isinstance(one, ast.FunctionDef) and not one.name.startswith("_")}
TAKEN |= dict.fromkeys(attnmath.__all__, "attnmath")
SET = ("alpha beta gamma delta epsilon theta kappa lambda Lambda mu nu phi chi psi tau sigma Sigma eta omega ell"
       " rho Pi partial dot hat bar tilde mathsf mathbf circ cdot times otimes sqrt frac langle rangle lVert rVert"
       " infty exp log tanh cos sin max min operatorname").split()
OTHER = r"[=<>]+|[^\x00-\x7f]"  # than formulas in texts have
FILLED = r"\s*(?:-?\d|\{|$)"  # or what a program puts in


def shown(tags: list, source: str) -> list[str]:
    """The function whose source a cell shows: its last line is show(name)."""
    if any(re.match("remove-|hide-output", str(tag)) for tag in tags):
        return []
    match _program(source).body[-1:]:
        case [ast.Expr(ast.Call(ast.Name("show"), [ast.Name(name) | ast.Attribute(attr=name)]))]:
            return [name]
    return []


def _program(source: str) -> ast.Module:
    """A cell's program; nothing, of what cannot be run."""
    try:
        return ast.parse(source)
    except SyntaxError:
        return ast.Module([], [])


def refused(source: str) -> Iterator[tuple[int, str, str]]:
    """(line, words, what is wrong) for all that a cell may not do."""
    for match in SHOWS.finditer(source):
        words = match[0].strip()
        line = source[: match.start() + match[0].index(words[0])].count("\n") + 1
        yield line, words, f"{words} can show what is not run; print it, draw it, or use show or as_table"
    tree = _program(source)
    for name, line in _bound(tree):
        if name in TAKEN:
            yield line, name, f"{name} has a meaning of its own, in {TAKEN[name]}; choose another name"
    for text, line in _texts(tree):
        if relation := relation_in(text):
            yield line, relation, f"{relation!r} in a text with formulas is not run; name what is drawn, in words"


def _bound(node: ast.AST) -> Iterator[tuple[str, int]]:
    """The names that a cell gives a meaning to, with their lines; not those inside of functions."""
    for child in ast.iter_child_nodes(node):
        line = getattr(child, "lineno", 1)
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, line
                yield from ((x, part.lineno) for part in ast.walk(child) if isinstance(part, ast.Global)
                            for x in part.names)
                continue
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                yield from ((part.target.id, line) for part in ast.walk(child) if isinstance(part, ast.NamedExpr))
                continue
            case ast.Import(names=names):
                yield from ((x.asname, line) for x in names if x.asname)
            case ast.ImportFrom(names=names, module=module):
                yield from ((x.asname or x.name, line) for x in names if x.asname or TAKEN.get(x.name) != module)
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name, line
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, line
            case ast.Call(func=ast.Name("setattr"), args=[_, ast.Constant(str(name)), *_]):
                yield name, line
        yield from _bound(child)


def _texts(tree: ast.AST) -> list[tuple[str, int]]:
    """The texts of a cell, with {} for what a program puts in."""
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in joined for part in node.values}
    texts = [("".join(str(x.value) if isinstance(x, ast.Constant) else "{}" for x in node.values), node.lineno)
             for node in joined]
    return texts + [(node.value, node.lineno) for node in ast.walk(tree)
                    if isinstance(node, ast.Constant) and id(node) not in parts and isinstance(node.value, str)]


def relation_in(text: str) -> str | None:
    """A relation in the formulas of a text, or between them; or a command that could be one."""
    if "$" not in text:
        return None
    words, formulas = text.split("$")[::2], text.split("$")[1::2]
    if len(words) == len(formulas):  # one that goes on in another text
        words, formulas = [], [text.replace("$", "")]
    for formula in formulas:
        commands = ["\\" + x for x in re.findall(r"\\([A-Za-z]+)", formula) if x not in SET]
        if odd := commands or re.findall(OTHER, formula):
            return odd[0]
    beside = re.search(rf"\$\s*({OTHER})(?!{FILLED})|({OTHER})\s*\$", "$".join(words))
    return beside[1] or beside[2] if beside else None


# ---- the numbers of a caption --------------------------------------------------------------------

UNITS = ("two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
         " seventeen eighteen nineteen twenty").split()
CARDINALS = {word: k for k, word in enumerate(UNITS, 2)}
CARDINALS |= {"thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
POWERS = {"hundred": 100, "thousand": 1000, "million": 10**6}
FRACTIONS = {"half": 2, "halves": 2, "quarter": 4, "third": 3, "fifth": 5, "eighth": 8, "ninth": 9, "twelfth": 12}
FRACTIONS |= {word + "th": k for word, k in (CARDINALS | POWERS).items() if word not in ("two", "three", "five")}
FRACTIONS |= {word[:-1] + "ieth": k for word, k in CARDINALS.items() if word.endswith("ty")}
FRACTIONS |= {word + "s": k for word, k in FRACTIONS.items()}
FOLD = {"twice": 2, "twofold": 2, "threefold": 3, "fourfold": 4, "fivefold": 5, "tenfold": 10, "hundredfold": 100}


def _any(words) -> str:
    return "|".join(sorted(words, key=len, reverse=True))


COUNT = rf"(?:(?:{_any(CARDINALS)}|a|one)[\s-]+)?(?:(?:{_any(POWERS)})\b\s*)+|{_any(CARDINALS)}"
IN_WORDS = re.compile(
    rf"(?<![\w-])(?:(?P<mixed>(?:{_any(CARDINALS)}|one)\s+and\s+a\s+half)"
    rf"|(?:(?P<top>{_any(CARDINALS)}|one|an?)[\s-]+)(?P<part>{_any(FRACTIONS)})|(?P<half>half|halves|quarter)"
    rf"|(?P<fold>{_any(FOLD)})|(?P<count>{COUNT}))(?![\w-])(?P<unit>\s+(?:digits|percent|per cent))?", re.I)
IN_DIGITS = re.compile(
    r"(?<![\w.])(?P<x>\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?:\s*(?:\\cdot|\\times)\s*(?P<base>10))?"
    r"(?:\^\{?(?P<power>-?\d+)\}?)?(?:/(?P<below>\d+))?(?P<unit>\s*(?:digits|percent|per cent|%))?")
RAISED = re.compile(r"(?<=[A-Za-z)}])\^(\{[^{}]*\}|\w)|_(\{[^{}]*\}|\w)|\\(?!cdot|times)[A-Za-z]+(?=\s*\d)")


def numbers(caption: str) -> list[tuple[str, float, str]]:
    """(words, value, unit) for each number of a caption."""
    text = re.sub(r"\$([^$]*)\$", lambda m: RAISED.sub(" ", m[1]), caption)
    found = []
    for m in IN_DIGITS.finditer(text):
        x = float(m["x"].replace(",", "").rstrip("."))
        if m["power"]:
            x = x * 10.0 ** int(m["power"]) if m["base"] else x ** int(m["power"])
        found.append((m[0], x / float(m["below"] or 1), (m["unit"] or "").strip()))
    return found + [(m[0], _value(m), (m["unit"] or "").strip()) for m in IN_WORDS.finditer(text)]


def _value(m: re.Match) -> float:
    if m["mixed"]:
        return CARDINALS.get(m["mixed"].split()[0].lower(), 1) + 0.5
    if m["part"] or m["half"]:
        return CARDINALS.get((m["top"] or "").lower(), 1) / FRACTIONS[(m["part"] or m["half"]).lower()]
    if m["fold"]:
        return FOLD[m["fold"].lower()]
    words = re.split(r"[\s-]+", m["count"].lower())
    return math.prod({**CARDINALS, **POWERS}.get(word, 1) for word in words)


def unasserted(caption: str, source: str) -> list[str]:
    """The numbers of a caption, as they stand there, that the cell does not assert."""
    known = asserted(_program(source))
    found = ((words.strip(), {_rounded(y) for y in _forms(x, unit)}) for words, x, unit in numbers(caption))
    return [words for words, forms in found if not known & forms]


def asserted(cell: ast.Module) -> set[float]:
    """The numbers in a cell's assertions, and in what it makes their names of."""
    claims = [part for node in ast.walk(cell) if isinstance(node, ast.Assert) for part in _claims(node.test)]
    made = [pair for node in ast.walk(cell) for pair in _makes(node)]
    used: set[str] = set().union(*map(_names, claims))
    while True:
        found = [value for names, value in made if names & used]
        more = used.union(*map(_names, found))
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
