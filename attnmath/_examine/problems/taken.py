"""Which sizes a function takes, and problems that are made of such sizes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from math import ceil

from attnmath._examine.problems.case import Case, Draft, SevenSizes

SIZE_LETTERS = "b", "H", "G", "n", "m", "d_k", "d_v"
LENGTHS, WIDTHS = ("n", "m"), ("d_k", "d_v")


@dataclass(frozen=True)
class Taken:
    """The sizes that a function takes; what is not said of a size may be any."""

    square: bool = False  # as many queries as keys alone
    at_most: bool = False  # n up to m alone
    same_width: bool = False  # d_v = d_k alone
    only: tuple[tuple[str, int], ...] = ()  # a size that may be this alone
    multiples: tuple[tuple[str, int], ...] = ()
    most: int | None = None  # queries or keys
    square_with: frozenset[str] = frozenset()  # options with which n = m alone
    mask_axes: str | None = None  # as in Conventions
    bias_axes: str | None = None
    fill: str | None = None

    def sizes(self, asked: SevenSizes, options: Collection[str] = ()) -> SevenSizes:
        """The sizes nearest to those that are asked for."""
        only, s = dict(self.only), dict(zip(SIZE_LETTERS, asked))
        steps = dict(self.multiples)
        s |= {letter: step * ceil(s[letter] / step) for letter, step in steps.items()}
        for x, y in (LENGTHS, WIDTHS):  # what was unequal stays so
            if asked[SIZE_LETTERS.index(x)] != asked[SIZE_LETTERS.index(y)] and s[x] == s[y]:
                larger = max(x, y, key=lambda letter: asked[SIZE_LETTERS.index(letter)])
                s[larger] += steps.get(larger, 0)
        if self.most:
            s |= {letter: min(s[letter], self.most) for letter in LENGTHS}
        if self.square or self.square_with & set(options):
            s["n"] = s["m"] = max(s["n"], s["m"])
        if self.at_most:
            s["n"] = min(s["n"], s["m"])
        if self.same_width:
            s["d_v"] = s["d_k"]
        heads, groups = only.get("H", s["H"]), asked[1] // asked[2]
        fewer = heads // min(groups, heads)
        s |= {"H": heads, "G": fewer if heads % fewer == 0 else 1} | only
        for x, y in (LENGTHS, WIDTHS):  # and what was equal stays so, where it may
            if asked[SIZE_LETTERS.index(x)] == asked[SIZE_LETTERS.index(y)]:
                free = [letter for letter in (x, y) if letter not in only]
                s |= dict.fromkeys(free if len(free) == 1 else (), s[y if free == [x] else x])
        return s["b"], s["H"], s["G"], s["n"], s["m"], s["d_k"], s["d_v"]

    def fits(self, case: Case) -> bool:
        """Whether a problem has sizes that are taken."""
        b, H, G, n, m, d_k, d_v = case.sizes.values()
        return self.sizes((b, H, G, n, m, d_k, d_v), case.needs) == (b, H, G, n, m, d_k, d_v)

    def draft(self, draft: Draft) -> Draft | None:
        """The draft with sizes that are taken; its name then says them. None if it is no longer what it was."""
        sizes, mask, bias = self.sizes(draft.sizes, draft.needs), draft.mask, draft.bias
        if mask and self.mask_axes:
            mask = _on_axes(mask, self.mask_axes)
        if bias and self.bias_axes:
            bias = _on_axes(bias, self.bias_axes)
        draft = replace(draft, mask=mask, bias=bias) if (mask, bias) != (draft.mask, draft.bias) else draft
        if sizes == draft.sizes:
            return draft
        said = ", ".join(f"{letter} {x}" for letter, x in zip(SIZE_LETTERS, sizes) if letter not in "bHG")
        made = replace(draft, sizes=sizes, name=f"{draft.name.split(',')[0]}, {_extras(draft)}{said}")
        return made if draft.needs <= made.needs <= draft.needs | {"groups"} else None

    def drafts(self, drafts: Collection[Draft]) -> list[Draft]:
        """Those that can be made, each once."""
        kept = [x for x in map(self.draft, drafts) if x is not None and x.mask != "" and x.bias != ""]
        kept = [x for x in kept if not (self.fill and "poison" in x.also)]  # its scores are larger than any number
        return list({replace(x, name=x.name.split(",")[0]): x for x in reversed(kept)}.values())[::-1]

    @property
    def words(self) -> str:
        """In words, as they follow "takes"."""
        said = ["n = m only"] if self.square else ["n up to m"] if self.at_most else []
        if alone := sorted(self.square_with):
            said.append(f"n = m only with {' and '.join(alone)}")
        if self.most:
            said.append(f"up to {self.most} queries and keys")
        steps: dict[int, list[str]] = {}
        for letter, step in self.multiples:
            steps.setdefault(step, []).append(letter)
        said += [f"multiples of {step} ({', '.join(letters)})" for step, letters in steps.items()]
        said += [f"{letter} = {x}" for letter, x in self.only if not (letter == "G" and ("H", x) in self.only)]
        if self.same_width and "d_v" not in dict(self.only):
            said.append("d_v = d_k only")
        said = said or ["any sizes"]
        said += [f"{what}s of the axes {' '.join(axes)}" for what, axes in
                 (("mask", self.mask_axes), ("bias", self.bias_axes)) if axes]
        said += [f"masks that add {self.fill}"] if self.fill else []
        return ", ".join(said).replace("biass", "biases")


def _on_axes(kind: str, axes: str) -> str:
    """The kind of mask or bias, of those that differ along these axes alone, that is nearest; "" for none."""
    own = {"all": "bhn", "heads": "hn", "hidden": "hn", "batch": "bn", "shared": "n", "empty": "n", "padding": "b"}
    if kind == "keys":
        return ""  # it has no axis of the queries
    kept = "".join(letter for letter in own[kind] if letter in axes)
    if kept == own[kind]:
        return kind
    if kind == "hidden":
        return ""
    if "n" not in axes:
        return "" if "b" not in axes else "padding of all" if kind == "empty" else "padding"
    return {"bhn": "all", "hn": "heads", "bn": "batch"}.get(kept, "shared")


ANY = Taken()


def _extras(draft: Draft) -> str:
    """What of a draft is not its sizes, in words to stand in its name."""
    said = [f"{kind} {word}" for word, kind in (("mask", draft.mask), ("bias", draft.bias)) if kind]
    said += ["causal"] * draft.causal + ([] if draft.scale is None else [f"scale {draft.scale:g}"])
    said += ["dropout"] * bool(draft.rho) + ["groups"] * ("groups" in draft.needs) + list(draft.also)
    return "".join(f"{word}, " for word in said if word)


def checked_sizes(sizes: Mapping[str, int] | None) -> dict[str, int]:
    """The sizes that somebody states, if they are sizes."""
    if sizes is not None and not isinstance(sizes, Mapping):
        raise TypeError(f"sizes must be a mapping such as {{'n': 64, 'H': 8}}, not {type(sizes).__name__}")
    for letter, x in (sizes or {}).items():
        if letter not in SIZE_LETTERS:
            raise ValueError(f"sizes has {letter!r}; it can have {', '.join(SIZE_LETTERS)}")
        if not isinstance(x, int) or isinstance(x, bool) or x < 1:
            raise ValueError(f"sizes has {letter}={x!r}; it needs a whole number above 0")
    told = dict(sizes or {})
    if told.get("H", 0) % told.get("G", 1):
        raise ValueError(f"sizes has H={told['H']} and G={told['G']}; H needs to be a multiple of G")
    return told
