"""Calls: the files of a crate that call each other in a circle.

A file calls another if one of its functions calls, or hands on by name, a method, an associated
function or a free function that is defined there. Which one a call means is what the compiler says:
this reads the MIR that rustc writes (see `emit-mir`), where receivers have their types and methods
their `impl`. A call through a type parameter or `dyn` goes to nobody. What macros write down, and
derives, counts for nobody either.

A call of a type of this crate that no definition is found for fails, and so does one with two.
"""

import collections
import pathlib
import re
from dataclasses import dataclass, field

from source import product_files

# fn engine::flush::<impl at core/src/engine/flush.rs:44:1: 44:12>::commit::{closure#0}(_1: ...
IN_IMPL = re.compile(r"fn [^(]*?<impl at (?P<file>[^:>]+):(?P<line>\d+):[^>]*>::(?P<name>\w+)")
FREE = re.compile(r"fn (?P<path>[^(<]*)")
# _5 = settle::<impl Engine>::fail(move _1, ...) -> [return: bb1, unwind: bb2];
ASSIGNED = re.compile(r"\s+(?:_\d+|\(.*?\)) = (?!(?:const|copy|move|discriminant|deref_copy)\b|[&\[({])(.*)$")
# Option::<T>::map::<U, fn(T) -> U {settle::<impl Engine>::fail}>, perhaps `{... as for<'a> fn}`
HANDED_ON = re.compile(r"\{(?!async |gen |impl )([A-Za-z_<][^{}@#]*?)(?: as (?:for|fn)\b[^{}]*)?\}")
FREE_FN = re.compile(r"^(?:pub(?:\([^)]*\))? )?(?:const )?(?:async )?(?:unsafe )?fn (\w+)", re.M)
TYPE = re.compile(r"^\s*(?:pub(?:\([^)]*\))? )?(?:struct|enum|union) (\w+)", re.M)


@dataclass
class Crate:
    """What is defined where, and what each body calls."""

    # (type, trait or None, name) -> files
    methods: dict = field(default_factory=lambda: collections.defaultdict(set))
    free: dict = field(default_factory=lambda: collections.defaultdict(set))
    types: set = field(default_factory=set)
    modules: set = field(default_factory=set)
    # What has no one answer, a line each.
    doubtful: set = field(default_factory=set)
    # (file, function, paths of what it calls, as MIR writes them)
    bodies: list = field(default_factory=list)


@dataclass(frozen=True)
class Callee:
    """A path of MIR, taken apart."""

    module: str
    type: str | None
    trait: str | None
    name: str


def without_generics(path):
    out, depth = [], 0
    for before, char in zip(" " + path, path):
        opens, closes = char == "<", char == ">" and before != "-"
        depth -= closes
        if not depth and not opens and not closes:
            out.append(char)
        depth += opens
    return re.sub("(::)+", "::", "".join(out)).strip(":")


def angled(text):
    """What stands in the angle brackets that `text` begins with, and what follows."""
    depth = 0
    for i, char in enumerate(text):
        depth += (char == "<") - (char == ">" and text[i - 1] != "-")
        if not depth:
            return text[1:i], text[i + 1 :]
    return text[1:], ""


def type_name(text):
    """`&mut parts::Engine<T>` is `Engine`."""
    text = re.sub(r"^[&*\s]*('\w+ )?(mut |const |dyn )*", "", text.strip())
    return without_generics(text).split("::")[-1].strip()


def split_outside(text, word):
    """The two sides of the first `word` outside of brackets; the second is None without one."""
    depth = 0
    for i, char in enumerate(text):
        if not depth and text.startswith(word, i):
            return text[:i], text[i + len(word) :]
        depth += (char in "<([") - (char in ")]") - (char == ">" and text[i - 1] != "-")
    return text, None


def callee(path):
    last = lambda text: without_generics(text).split("::")[-1]
    qualified = re.search(r"(^|::)<", path)
    if path.startswith("<") and not path.startswith("<impl "):
        inside, rest = angled(path)
        of, trait = split_outside(inside, " as ")
        return Callee("", type_name(of), trait and type_name(trait), last(rest))
    at = path.find("<impl ")
    if qualified and at >= 0:
        inside, rest = angled(path[at:])
        trait, of = split_outside(inside[len("impl ") :], " for ")
        of, trait = (of, type_name(trait)) if of else (trait, None)
        return Callee(without_generics(path[:at]), type_name(of), trait, last(rest))
    parts = without_generics(path).split("::")
    of = parts[-2] if len(parts) > 1 and parts[-2][:1].isupper() else None
    return Callee("::".join(parts[: -2 if of else -1]), of, None, parts[-1])


def implemented(text):
    """The type and the trait of the `impl` that `text` begins with; None of a macro or derive."""
    begin = re.match(r"\s*(?:unsafe )?impl\b\s*", text)
    if not begin:
        return None
    text = text[begin.end() :]
    text = angled(text)[1] if text.startswith("<") else text
    trait, of = split_outside(re.split(r"\{| where\b", text)[0], " for ")
    return (type_name(of), type_name(trait)) if of else (type_name(trait), None)


def calls_of(line):
    assigned = ASSIGNED.match(line)
    if assigned:
        called, arguments = split_outside(assigned.group(1), "(")
        if arguments is not None:
            yield split_outside(called, " as ")[0]
    yield from HANDED_ON.findall(line)


def read(top, src, mir):
    crate = Crate()
    for path in product_files(src):
        text = path.read_text()
        crate.modules |= {path.stem, path.parent.name}
        crate.types |= set(TYPE.findall(text))
        for name in FREE_FN.findall(text):
            crate.free[name].add(path)
    lines = {}
    body = None
    for line in mir.read_text().splitlines():
        if line.startswith("fn "):
            body = begin_body(top, crate, lines, line)
        elif line.startswith("const ") or line.startswith("static "):
            body = None
        elif body and line.startswith("    "):
            body[2].update(calls_of(line))
    return crate


def begin_body(top, crate, lines, line):
    method = IN_IMPL.match(line)
    if method:
        path = top / method["file"]
        text = lines.setdefault(path, path.read_text().splitlines())
        begin = int(method["line"]) - 1
        of = implemented(" ".join(text[begin : begin + 8]))
        if of is None:
            return None
        crate.methods[(*of, method["name"])].add(path)
        name = f"{of[0]}::{method['name']}"
    else:
        parts = [p for p in FREE.match(line)["path"].split("::") if p and not p.startswith("{")]
        name, defined = parts[-1], crate.free.get(parts[-1], set())
        path = one_of(defined, "::".join(parts[:-1]))
        if not isinstance(path, pathlib.Path):
            if defined:
                crate.doubtful.add(f"{line.split('(')[0]}: which file is it in, of {sorted(map(str, defined))}?")
            return None  # What a macro writes down has no file.
    crate.bodies.append((path, name, set()))
    return crate.bodies[-1]


def one_of(paths, module):
    """The one file of these, the one that `module` names if there are more; else all of them."""
    if len(paths) > 1:
        last = module.split("::")[-1]
        is_it = lambda p: last == (p.parent.name if p.stem == "mod" else p.stem)
        is_root = lambda p: p.stem in ("lib", "main")
        paths = set(filter(is_it if module else is_root, paths)) or paths
    return next(iter(paths)) if len(paths) == 1 else paths


def edges(top, src, mir):
    """(file, file) -> the calls; and what cannot be resolved, a line each."""
    crate = read(top, src, mir)
    found, doubtful = collections.defaultdict(set), crate.doubtful
    for path, name, paths in crate.bodies:
        for called in map(callee, paths):
            if not re.match(r"_*[a-z]", called.name):
                continue  # A variant or a tuple struct.
            if called.module and called.module.split("::")[0] not in crate.modules:
                continue  # Another crate's, of the same name perhaps.
            if called.type:
                defined = crate.methods.get((called.type, called.trait, called.name), set())
                expected = called.type in crate.types and called.trait is None
            else:
                defined, expected = crate.free.get(called.name, set()), False
            if path in defined and not called.module:
                continue  # Its own.
            target = one_of(defined, called.module)
            if isinstance(target, pathlib.Path):
                if target != path:
                    of = f"{called.type}::" if called.type else ""
                    found[path, target].add(f"{name} calls {of}{called.name}")
            elif target or expected:
                where = "defined twice" if target else "defined nowhere"
                doubtful.add(f"{path}: {name} calls {called.type}::{called.name}, {where}")
    return found, sorted(doubtful)


def circles(found):
    """The files of each circle."""
    to = {}
    for caller, called in found:
        to.setdefault(caller, set()).add(called)
    reach = {}
    for path in to:
        seen, left = set(), [path]
        while left:
            new = to.get(left.pop(), set()) - seen
            seen |= new
            left += new
        reach[path] = seen
    in_rings = [path for path in to if path in reach[path]]
    rings = {frozenset(p for p in in_rings if p in reach[path] and path in reach[p]) for path in in_rings}
    return sorted(map(sorted, rings))


def check_itself(folder):
    source = """
        pub struct Engine;
        impl Engine {
            pub fn go(&self) {}
        }
    """
    other = """
        impl<T: Copy> crate::Engine {
            fn stop(&self) {}
        }
    """
    (folder / "lib.rs").write_text(source)
    (folder / "stop.rs").write_text(other)
    at = lambda name, line: f"<impl at {folder}/{name}.rs:{line}:9: {line}:20>"

    def found(go, stop):
        (folder / "lib.mir").write_text(f"""
fn {at("lib", 3)}::go(_1: &Engine) -> () {{
    bb0: {{
        {go}
    }}
}}
fn stop::{at("stop", 2)}::stop(_1: &Engine) -> () {{
    bb0: {{
        {stop}
    }}
}}
""")
        found, doubtful = edges(folder, folder, folder / "lib.mir")
        return len(circles(found)), len(doubtful)

    down = "_2 = stop::<impl Engine>::stop(copy _1) -> [return: bb1, unwind: bb2];"
    assert found(down, "_2 = Option::<Engine>::is_some(copy _1) -> [return: bb1];") == (0, 0)
    assert found(down, "_2 = Engine::go(copy _1) -> [return: bb1, unwind: bb2];") == (1, 0)
    # By name, to an iterator.
    assert found(down, "_2 = Iter::map::<(), fn(&Engine) {Engine::go}>(copy _1) -> [return: bb1];") == (1, 0)
    assert found(down, "(*_2) = Engine::gone(copy _1) -> [return: bb1, unwind: bb2];") == (0, 1)
