"""What a code cell may not do: show what nobody runs, or give a public name to something else."""

import ast
import re
from collections.abc import Iterator

import attnmath

SHOWS = re.compile(  # other outputs than text, pictures and what the book's notebook module makes
    r"^\s*%+\w+|\bIPython\b|\bget_ipython\b|\bdisplay_pub\b|\bdisplay\s*\(|\b_repr_|\btext/(latex|markdown|html)\b"
    r"|\bapplication/|\b(sympy|pandas)\b|\b__(wrapped|code|module)__|\bglobals\s*\(", re.M)
OWN = dict.fromkeys(("show", "as_table", "book_style", "answer", "checked", "matrices", "draw_values"),
                    "attnmath.page.notebook")
OWN |= dict.fromkeys(attnmath.__all__, "attnmath")
SET = ("alpha beta gamma delta epsilon theta kappa lambda Lambda mu nu phi chi psi tau sigma Sigma eta omega ell"
       " rho Pi partial dot hat bar tilde mathsf mathbf circ cdot times otimes sqrt frac langle rangle lVert rVert"
       " infty exp log tanh max min operatorname").split()
OTHER = r"[=<>]+|[^\x00-\x7f]"  # than formulas in texts have
NUMBER = r"\s*(?:-?\d|\{|$)"  # or what a program puts in


def refused(source: str) -> Iterator[tuple[int, str, str]]:
    """(line, words, what is wrong) for all that a cell may not do."""
    for match in SHOWS.finditer(source):
        words = match[0].strip()
        line = source[: match.start() + match[0].index(words[0])].count("\n") + 1
        yield line, words, f"{words} can show what is not run; print it, draw it, or use show or as_table"
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return
    for name, line in _bound(tree):
        if name in OWN:
            yield line, name, f"{name} has a meaning of its own, in {OWN[name]}; choose another name"
    for text, line in _texts(tree):
        if relation := stated(text):
            yield line, relation, f"{relation!r} in a text with formulas is not run; name what is drawn, in words"


def _bound(node: ast.AST) -> Iterator[tuple[str, int]]:
    """The names that a cell gives a meaning to, with their lines; not those inside of functions."""
    for child in ast.iter_child_nodes(node):
        line = getattr(child, "lineno", 1)
        match child:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, line
                yield from ((x, part.lineno) for part in ast.walk(child) if isinstance(part, ast.Global)
                            for x in part.names)  # fmt: skip
                continue
            case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                yield from ((part.target.id, line) for part in ast.walk(child) if isinstance(part, ast.NamedExpr))
                continue
            case ast.Import(names=names):
                yield from ((x.asname, line) for x in names if x.asname)
            case ast.ImportFrom(names=names, module=module):
                yield from ((x.asname or x.name, line) for x in names if x.asname or OWN.get(x.name) != module)
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
    alone = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in parts]
    texts = [("".join(x.value if isinstance(x, ast.Constant) else "{}" for x in node.values), node.lineno)
             for node in joined]  # fmt: skip
    return texts + [(node.value, node.lineno) for node in alone if isinstance(node.value, str)]


def stated(text: str) -> str | None:
    """A relation in the formulas of a text, or between them; or a command that could be one."""
    if "$" not in text:
        return None
    words, formulas = text.split("$")[::2], text.split("$")[1::2]
    if len(words) == len(formulas):  # one that goes on in another text
        words, formulas = [], [text.replace("$", "")]
    for formula in formulas:
        commands = [x for x in re.findall(r"\\([A-Za-z]+)", formula) if x not in SET]
        if commands or re.search(OTHER, formula):
            return "\\" + commands[0] if commands else re.search(OTHER, formula)[0]
    beside = re.search(rf"\$\s*({OTHER})(?!{NUMBER})|({OTHER})\s*\$", "$".join(words))
    return beside[1] or beside[2] if beside else None
