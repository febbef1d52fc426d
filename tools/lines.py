"""How long the package is: its lines of code, without blank lines, comments and docstrings.

    python tools/lines.py [folder ...]
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
DOCUMENTED = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def lines(source):
    """The number of lines on which there is code."""
    code, words = set(), set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            words.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return len(code - words)


def counted(folder):
    """The lines of a folder, by the folders in it."""
    found = Counter()
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder).parts
        found[place[0] if len(place) > 1 else "."] += lines(path.read_text("utf-8"))
    return found


def main(names):
    for name in names or ["attnmath"]:
        found = counted(ROOT / name)
        parts = ", ".join(f"{part} {count:,}" for part, count in sorted(found.items()) if part != ".")
        print(f"{name}: {sum(found.values()):,} lines of code" + f" ({parts})" * bool(parts))


if __name__ == "__main__":
    main(sys.argv[1:])
