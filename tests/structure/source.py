"""Rust sources as tokens: enough of the language to look at imports and patterns."""

import re

HIDDEN = re.compile(  # Comments, texts, characters.
    r'//[^\n]*|/\*.*?\*/|\bb?r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\[^\']+|\\\'|[^\'\\])\'', re.S)
TOKEN = re.compile(r"\w+|::|\S")
FOR_TESTS = re.compile(r"#!?\[cfg\((test|doc|all\(test)\b")
DEFINES = "struct enum union trait fn const static type macro_rules".split()


def tokens(text):
    """The tokens of a file; none of a file that is for tests alone."""
    toks = TOKEN.findall(HIDDEN.sub(" 0 ", text))
    return [] if toks[1:2] == ["!"] and FOR_TESTS.match("".join(toks[:8])) else toks


def behind_group(toks, i):
    """The index behind the group that opens at `i`."""
    depth = 0
    while True:
        depth += (toks[i] in "([{") - (toks[i] in ")]}")
        i += 1
        if not depth:
            return i


def behind_item(toks, i):
    """The index behind the item whose attributes begin at `i`."""
    while toks[i] == "#":
        i = behind_group(toks, i + 1)
    ends = ";{" if toks[i] in DEFINES + "mod use impl pub async let".split() else ";{,}"
    while toks[i] not in ends:
        i = behind_group(toks, i) if toks[i] in "([" else i + 1
    return behind_group(toks, i) if toks[i] == "{" else i + (toks[i] != "}")


def product_files(src):
    """The files below `src` that are built into the product: modules for tests, whether their
    folder says so or the line that declares them, are left out."""
    for_tests = set()
    for path in src.rglob("*.rs"):
        folder = path.parent if path.stem in ("lib", "main", "mod") else path.with_suffix("")
        toks = tokens(path.read_text())
        for i in range(len(toks)):
            if FOR_TESTS.match("".join(toks[i : i + 8])):
                rest = toks[i : behind_item(toks, i)]
                if rest[-1] == ";" and "mod" in rest:
                    for_tests.add(folder / rest[rest.index("mod") + 1])
    return [path for path in sorted(src.rglob("*.rs"))
            if tokens(path.read_text())
            and not any(path.with_suffix("") == t or t in path.parents for t in for_tests)]
