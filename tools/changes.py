"""What may stand in the place of a part of a formula: another sign, word, index or name."""

import ast
from collections.abc import Iterator

OPERATORS = {ast.Add: (ast.Sub, ast.Mult), ast.Sub: (ast.Add, ast.Mult), ast.Mult: (ast.Div, ast.Add),
             ast.Div: (ast.Mult, ast.Sub), ast.MatMult: (ast.Mult, ast.Add), ast.FloorDiv: (ast.Mod, ast.Mult),
             ast.Mod: (ast.FloorDiv,), ast.Pow: (ast.Mult,)}
COMPARISONS = {ast.Eq: (ast.NotEq, ast.GtE, ast.LtE), ast.NotEq: (ast.Eq,), ast.Gt: (ast.GtE, ast.Lt),
               ast.GtE: (ast.Gt, ast.LtE), ast.Lt: (ast.LtE, ast.Gt), ast.Is: (ast.IsNot,),
               ast.IsNot: (ast.Is,)}
ALIKE = [line.split() for line in """
    rowsum rowmean rowmax
    column row ahead
    flat column
    exp log sqrt tanh
    softmax exp log_softmax
    sum mean max
    plus times divide shift
    hide visible
    finite nonzero
    diag blocks column
    kron times
    inner times
    apply over_tokens
    to_heads from_heads
    heads_over_tokens over_tokens
    heads_to_bias sum_to
    concatenation exchanged
    lifted lowered column
    silu sigmoid tanh
    multihead multihead_map
    linear_vjp linear_jvp
    softmax_jvp log_softmax_jvp softmax_vjp
    log_softmax_vjp logsumexp_vjp softmax_vjp
    silu_jvp silu_vjp times
    log_softmax softmax
    ones zeros
    stack concat
    expand_dims squeeze
    logsumexp softmax rowsum
    identity T
    each_head of_head
""".strip().splitlines()]


def alternatives(node: ast.AST, names: list) -> Iterator[ast.AST]:
    """What may stand in the place of the node."""
    kind = type(node).__name__
    if kind in ALTERNATIVES:
        yield from ALTERNATIVES[kind](node)
    if isinstance(node, ast.Name | ast.Attribute):
        yield from words(node)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
        yield from (ast.Name(x, node.ctx) for x in names if x != node.id)


def binary(node: ast.BinOp) -> Iterator[ast.AST]:
    """Another operator; one side alone."""
    yield from (ast.BinOp(node.left, op(), node.right) for op in OPERATORS[type(node.op)])
    yield node.left
    yield ast.UnaryOp(ast.USub(), node.right) if isinstance(node.op, ast.Sub) else node.right
    if isinstance(node.op, ast.MatMult | ast.Sub | ast.Div):
        yield ast.BinOp(node.right, node.op, node.left)


def unary(node: ast.UnaryOp) -> Iterator[ast.AST]:
    """Without the sign or the negation; an index from the end, moved by one."""
    yield node.operand
    if isinstance(node.op, ast.USub) and is_whole(node.operand):
        yield from (ast.Constant(1 - node.operand.value), ast.Constant(-1 - node.operand.value))


def constant(node: ast.Constant) -> Iterator[ast.AST]:
    """Other numbers and the other truth value."""
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif is_whole(node):
        yield from (ast.Constant(node.value + 1), ast.Constant(node.value - 1))
    elif isinstance(node.value, float):
        yield ast.Constant(2 * node.value)


def is_whole(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def comparison(node: ast.Compare) -> Iterator[ast.AST]:
    """Another relation."""
    for k, op in enumerate(node.ops):
        for other in COMPARISONS.get(type(op), ()):
            yield ast.Compare(node.left, [*node.ops[:k], other(), *node.ops[k + 1:]], node.comparators)


def call(node: ast.Call) -> Iterator[ast.AST]:
    """The first argument alone; neighbours exchanged; without a keyword, or the last argument."""
    if node.args and not isinstance(node.args[0], ast.Starred):
        yield node.args[0]
    yield from (ast.Call(node.func, args, node.keywords) for args in exchanged(node.args))
    for k in range(len(node.keywords)):
        yield ast.Call(node.func, node.args, node.keywords[:k] + node.keywords[k + 1:])
    if len(node.args) > 1:
        yield ast.Call(node.func, node.args[:-1], node.keywords)


def sequence(node: ast.Tuple | ast.List) -> Iterator[ast.AST]:
    """Neighbours exchanged."""
    yield from (type(node)(elements, node.ctx) for elements in exchanged(node.elts))


def exchanged(parts: list) -> Iterator[list]:
    """Two neighbours the other way round."""
    for k in range(len(parts) - 1):
        yield [*parts[:k], parts[k + 1], parts[k], *parts[k + 2:]]


def condition(node: ast.IfExp) -> Iterator[ast.AST]:
    """Always the one, always the other, and each in the place of the other."""
    yield from (node.body, node.orelse, ast.IfExp(node.test, node.orelse, node.body))


def boolean(node: ast.BoolOp) -> Iterator[ast.AST]:
    """`or` for `and`; one side alone."""
    yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
    yield from node.values


def words(node: ast.Name | ast.Attribute) -> Iterator[ast.AST]:
    """A similar word of the vocabulary."""
    word = node.id if isinstance(node, ast.Name) else node.attr
    others = dict.fromkeys(x for line in ALIKE if word in line for x in line if x != word)
    if isinstance(node.ctx, ast.Load):
        for x in others:
            yield ast.Name(x, node.ctx) if isinstance(node, ast.Name) else ast.Attribute(node.value, x, node.ctx)


ALTERNATIVES = {"BinOp": binary, "UnaryOp": unary, "Constant": constant, "Compare": comparison, "Call": call,
                "Tuple": sequence, "List": sequence, "IfExp": condition, "BoolOp": boolean}
