"""The command: attnmath examine, attnmath vectors."""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from attnmath import __version__

DTYPES = "float64", "float32", "bfloat16", "float16"
FRAMEWORKS = "numpy", "torch", "jax"
OPTIONS = "mask", "bias", "causal", "scale", "groups", "dropout", "dropout_mask", "seed"
CONVENTIONS = "layout", "mask", "causal", "groups", "scale", "empty", "inside"
EPILOG = """\
The exit status is 0 if it is right, 1 if it is wrong, 2 if it could not be run, 3 if it is not in the list.
A report names chapters: pages of the book in the folder chapters of the source of attnmath.

examples:
  attnmath examine my_module:attention
  attnmath examine kernels/flash.py:forward --backward kernels/flash.py:backward --dtype bfloat16
  attnmath examine torch.nn.functional:scaled_dot_product_attention \\
      --options mask=attn_mask,causal=is_causal,scale=scale
  attnmath examine my_module:ring --ranks 4 --layout zigzag --options causal
  attnmath vectors my_folder --format npz
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these words, or with those of the shell; the exit status."""
    args = parser().parse_args(argv)
    from attnmath._examine.contract.functions import Unusable

    try:
        return args.run(args)
    except Unusable as error:
        print(f"attnmath {args.command}: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"attnmath {args.command}: interrupted", file=sys.stderr)
    except Exception:  # status 1 would say that the attention is wrong
        import traceback

        traceback.print_exc()
    return 2


def parser() -> argparse.ArgumentParser:
    """What the command understands."""
    top = argparse.ArgumentParser(
        "attnmath", description="Is my attention right, and if not, which term is wrong?",
        epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"attnmath {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_examine(commands)
    _add_vectors(commands)
    return top


def _add_examine(commands: Any) -> None:
    examine = commands.add_parser(
        "examine", help="examine a function and its gradients", usage="attnmath examine [options] FUNCTION",
        description="Examine f(q, k, v) -> o and its gradients. Numbers are drawn anew on each run.",
        epilog="The exit status is 0 if it is right, 1 if it is wrong, 2 if it could not be run, 3 if it is no"
               " attention of the list.",
    )
    add = examine.add_argument
    add("target", metavar="FUNCTION", help="module:function, or path/to/file.py:function")
    add("--backward", metavar="FUNCTION", help="backward(do, q, k, v) -> dq, dk, dv, if not by autograd")
    add("--reference", metavar="FUNCTION", help="a plain function, called alike, that it has to agree with")
    add("--dtype", choices=DTYPES, help="the format of its numbers")
    add("--framework", choices=FRAMEWORKS, help="whose arrays it takes")
    add("--layout", help="the order of its axes, such as bhsd or bshd; found out if not given; or over ranks"
        " which tokens a rank has: contiguous or zigzag")
    add("--ranks", type=int, metavar="R", help="call it on so many ranks at the same time, each with its own"
        " tokens, in a group of torch.distributed; under torchrun on those that there are")
    add("--device", help="where it runs, such as cpu or cuda")
    add("--options", type=_options, metavar="NAME=KEYWORD,...",
        help=f"what it can take, and its own keywords; names: {', '.join(OPTIONS)}; a name alone is its"
             " own keyword, groups alone needs none, and causal=always says that it always is")
    add("--conventions", type=_conventions, metavar="NAME=VALUE,...",
        help=f"what is demanded, such as causal=lower_right; names: {', '.join(CONVENTIONS)}")
    add("--scale", help="of the scores, as it is demanded: a number, 1/sqrt(d_k), 1/d_k, ...")
    add("--without", type=lambda text: text.split(","), default=[], metavar="WORD,...",
        help="what is not meant to be there: gradients such as dV, keywords that are no options")
    add("--seed", type=int, help="draw the same numbers as another run")
    add("--time-limit", type=_seconds, default=30.0, metavar="S", help="seconds for one call (30)")
    add("--in-process", action="store_true",
        help="examine in this process; else a crash, a loop and runaway memory are told")
    add("--no-smallest", action="store_true", help="do not look for the smallest case that fails")
    add("--json", action="store_true", help="print the report as JSON")
    add("--junit", metavar="FILE", help="also write the report as JUnit's XML")
    add("--quiet", action="store_true", help="print the verdict only, in one line")
    add("--progress", action="store_true", help="say what is being done, also where no one is watching")
    examine.set_defaults(run=_examine)


def _add_vectors(commands: Any) -> None:
    vectors = commands.add_parser(
        "vectors", help="write test vectors for programs in other languages",
        usage="attnmath vectors [options] DIR",
        description="Write inputs, outputs, intermediates and gradients, with an index of them.",
    )
    add = vectors.add_argument
    add("folder", metavar="DIR", help="a folder, which is made if it is not there")
    add("--format", choices=("safetensors", "npz"), default="safetensors", help="of the files (safetensors)")
    add("--dtype", choices=DTYPES, action="append", help="all four if not given; may be given more than once")
    vectors.set_defaults(run=_vectors)


def _examine(args: argparse.Namespace) -> int:
    from attnmath._examine.contract.functions import Unusable
    from attnmath._examine.contract.process import judged_apart
    from attnmath._examine.report.display import Progress

    say = Progress(args.progress or sys.stderr.isatty(), sys.stderr.isatty())
    try:
        if args.in_process or _launched(args):
            report = _report(args, say)
        else:
            limit = args.time_limit if args.ranks is None else max(args.time_limit, 10.0)
            report = judged_apart(partial(_report, args), args.target.rpartition(":")[2], limit, say)
    except (ValueError, TypeError, ImportError) as error:
        raise Unusable(" ".join(str(error).split())) from error
    finally:
        say.end()
    if _launched(args) and os.environ["RANK"] != "0":
        return report.status  # the first rank says it
    if args.junit is not None:
        _write(args.junit, report.to_junit())
    if args.quiet:
        print(f"{report.candidate} is {report.sentence}")
    else:
        print(report.to_json() if args.json else report)
    return report.status


def _launched(args: argparse.Namespace) -> bool:
    """Whether it is over ranks that torchrun has begun."""
    return (args.ranks is not None or args.layout in ("contiguous", "zigzag")) and "RANK" in os.environ


def _report(args: argparse.Namespace, say: Any) -> Any:
    """The report, in this process."""
    from attnmath._examine.contract.functions import load_function

    with redirect_stdout(io.StringIO() if args.quiet else sys.stderr):  # what is printed is no part of the report
        fn, (backward, reference) = load_function(args.target), (
            None if name is None else load_function(name) for name in (args.backward, args.reference))
        from attnmath import examine

        return examine(
            fn, backward, options=args.options, reference=reference, scale=args.scale, without=args.without,
            conventions=args.conventions, dtype=args.dtype,
            framework=args.framework, layout=args.layout, device=args.device, seed=args.seed,
            time_limit=args.time_limit, smallest=not args.no_smallest, progress=say, ranks=args.ranks,
        )


def _vectors(args: argparse.Namespace) -> int:
    from attnmath._examine.contract.functions import Unusable
    from attnmath._examine.report.display import Progress
    from attnmath._vectors.files import write

    folder = Path(args.folder)
    if not args.folder.strip():
        raise Unusable("DIR is empty; it needs to be the name of a folder")
    if file := next((x for x in (folder, *folder.parents) if x.exists() and not x.is_dir()), None):
        raise Unusable(f"{file} is a file; DIR needs to be a folder, or a name that is free")
    say = Progress(sys.stderr.isatty(), sys.stderr.isatty())
    try:
        said = write(folder, args.format, args.dtype or DTYPES, progress=say)
    except ImportError as error:
        raise Unusable(str(error)) from error
    except OSError as error:
        raise Unusable(f"{error.filename or folder} cannot be written: {error.strerror or error}") from error
    finally:
        say.end()
    print(said)
    return 0


def _write(path: str, text: str) -> None:
    from attnmath._examine.contract.functions import Unusable

    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise Unusable(f"{path or repr(path)} cannot be written: {error.strerror}") from error


def _options(text: str) -> dict[str, Any]:
    found = {}
    for name, value in _pairs(text, OPTIONS).items():
        always, untold = (name, value) == ("causal", "always"), (name, value) == ("groups", "")
        found[name] = True if always else None if untold else value or name
    return found


def _conventions(text: str) -> dict[str, str]:
    found = _pairs(text, CONVENTIONS)
    if not all(found.values()):
        raise argparse.ArgumentTypeError(f"{text}: it needs to be NAME=VALUE,...")
    return found


def _pairs(text: str, names: Sequence[str]) -> dict[str, str]:
    found = dict(part.partition("=")[::2] for part in text.split(","))
    if unknown := found.keys() - set(names):
        raise argparse.ArgumentTypeError(f"{min(unknown)!r} is none of {', '.join(names)}")
    return found


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: it needs to be a number of seconds above 0")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
