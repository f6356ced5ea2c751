"""Wildcards: patterns that look at one operation, answer, reply or timer state and pass over the
rest, so that the compiler does not ask about a new one.

Counted are `matches!`, `if let`, `while let`, `let else` with a variant of such a type, and a
`match` that has such a variant in one arm and `_` or a plain name in another. They belong to the
modules of the operations (`ops/`) and to the file that defines the type; anywhere else they are
counted, file by file.
"""

import collections
import re

from source import FOR_TESTS, behind_group, behind_item, product_files, tokens

# The types whose variants are operations, answers, replies and timer states. The answers and replies
# of each operation are types of their own, named after it.
WATCHED = {"Op", "OpKind", "RequestOp", "OpCtx", "Answer", "EntryState", "Place", "At"}
REPLIES = ("Reply", "Answer")
# Answers to questions, to calls and to brokers.
OTHERS = {"QueryAnswer", "CallAnswer", "PeerAnswer"}
PLAIN = re.compile(r"[a-z_]\w*$")


def patterns(toks):
    """Every pattern that passes over what it does not name: its tokens, and which kind it is."""
    i = 0
    while i < len(toks):
        if FOR_TESTS.match("".join(toks[i : i + 8])):
            i = behind_item(toks, i)
            continue
        if toks[i : i + 3] == ["matches", "!", "("]:
            end = behind_group(toks, i + 2)
            yield "matches!", behind_comma(toks[i + 3 : end - 1])
        elif toks[i] in ("if", "while", "&") and toks[i + 1 : i + 2] == ["let"]:
            yield "if let", up_to(toks, i + 2, "=")
        elif toks[i] == "let" and toks[i - 1] not in ("if", "while", "&"):
            pattern = up_to(toks, i + 1, "=")
            if has_else(toks, i + 1 + len(pattern)):
                yield "let else", pattern
        elif toks[i] == "match" and toks[i - 1] not in (".", "fn"):
            begin = i + 1
            while toks[begin] != "{":
                begin = behind_group(toks, begin) if toks[begin] in "([" else begin + 1
            arms = list(arms_of(toks, begin))
            if any(is_rest(arm) for arm in arms):
                yield "_", [token for arm in arms for token in arm]
        i += 1


def up_to(toks, i, end):
    """The tokens from `i` up to `end` outside of groups."""
    begin = i
    while i < len(toks) and toks[i] not in (end, ";"):
        i = behind_group(toks, i) if toks[i] in "([{" else i + 1
    return toks[begin:i]


def behind_comma(toks):
    """The second argument of a macro, without its guard."""
    rest = toks[len(up_to(toks, 0, ",")) + 1 :]
    return up_to(rest, 0, "if")


def has_else(toks, i):
    while i < len(toks) and toks[i] != ";":
        if toks[i] == "else":
            return toks[i + 1] == "{" and toks[i - 1] != "}"
        if toks[i] == "}":
            return False
        i = behind_group(toks, i) if toks[i] in "([{" else i + 1
    return False


def arms_of(toks, begin):
    """The patterns of a `match` whose braces open at `begin`, without their guards."""
    i, end = begin + 1, behind_group(toks, begin) - 1
    while i < end:
        arrow = i
        while arrow < end and toks[arrow : arrow + 2] != ["=", ">"]:
            arrow = behind_group(toks, arrow) if toks[arrow] in "([{" else arrow + 1
        if arrow >= end:
            return
        yield up_to(toks[i:arrow], 0, "if")
        i = arrow + 2
        if toks[i] == "{":
            i = behind_group(toks, i)
            i += toks[i] == ","
        else:
            while i < end and toks[i] != ",":
                i = behind_group(toks, i) if toks[i] in "([{" else i + 1
            i += 1


def is_rest(arm):
    """Whether a pattern takes whatever is left."""
    return any(len(part) == 1 and PLAIN.match(part[0]) for part in alternatives(arm))


def alternatives(arm):
    part, i = [], 0
    while i < len(arm):
        if arm[i] == "|":
            yield part
            part = []
            i += 1
            continue
        end = behind_group(arm, i) if arm[i] in "([{" else i + 1
        part, i = part + arm[i:end], end
    yield part


def variants(pattern, own):
    """The watched types of which a pattern names variants; `own` is what `Self` stands for."""
    named = {token for token, then in zip(pattern, pattern[1:]) if then == "::"}
    named |= {own} if "Self" in named else set()
    return {name for name in named if is_watched(name)}


def is_watched(name):
    return bool(name) and name not in OTHERS and (name in WATCHED or name.endswith(REPLIES))


def selves(toks):
    """For each token the type that `Self` means there, as far as an `impl` says so."""
    own, until, found = None, 0, []
    for i, token in enumerate(toks):
        if token == "impl" and i >= until:
            begin = i + 1
            while toks[begin] not in "{;":
                begin += 1
            head = toks[i + 1 : begin]
            head = head[head.index("for") + 1 :] if "for" in head else head
            own = next((t for t in head if is_watched(t)), None)
            until = behind_group(toks, begin) if toks[begin] == "{" else begin
        found.append(own if i < until else None)
    return found


def wildcards(src):
    """How many wildcards there are in each file below `src` where they do not belong."""
    found = collections.Counter()
    for path in product_files(src):
        toks = tokens(path.read_text())
        defines = {name for kind, name in zip(toks, toks[1:]) if kind == "enum"}
        if "ops" in path.parts or "conformance" in path.parts:
            continue
        own = next((o for o in selves(toks) if o), None)
        for _, pattern in patterns(toks):
            if variants(pattern, own) - defines:
                found[path] += 1
    return found


def check_itself(folder):
    def found(text):
        (folder / "lib.rs").write_text(text)
        return sum(wildcards(folder).values())

    assert found("fn f(op: Op) -> bool { matches!(op, Op::Take { .. } | Op::Park(_)) }") == 1
    assert found("fn f(op: Op) { if let Some(Op::Take { id }) = op { g(id) } }") == 1
    assert found("fn f(op: Op) { let Op::Take { id } = op else { return }; let x = 1; }") == 1
    assert found("fn f(op: Op) { match op { Op::Take { .. } => 1, Op::Park(x) if x => 2, _ => 3 } }") == 1
    assert found("fn f(op: Op) { match op { Op::Take { .. } => { 1 } rest if g() => 2, Op::A => 3 } }") == 1
    assert found("fn f(op: Op) { match op { Op::Take { .. } => 1, Op::Park(_) => 2 } }") == 0
    assert found("fn f(n: u8) { match n { 0 => Op::Take, _ => Op::Park } }") == 0
    assert found("fn f(r: CancelReply) -> bool { matches!(r, CancelReply::TooLate(_)) }") == 1
    assert found("enum Op { A, B } fn f(op: Op) -> bool { matches!(op, Op::A) }") == 0
    assert found("#[cfg(test)] mod tests { fn f(op: Op) -> bool { matches!(op, Op::A) } }") == 0
