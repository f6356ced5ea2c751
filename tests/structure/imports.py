"""Imports: the modules of a crate that import each other in a circle.

Re-exports are transparent: `use crate::Name` is an import from the module that defines `Name`, and
a module that only declares and re-exports its children imports nothing from them. Code for tests
does not count, nor do methods: what calls a method does not import the module that has it. Calls
are looked at by `calls`.
"""

import re

from source import DEFINES, FOR_TESTS, behind_group, behind_item, tokens


class Module:
    def __init__(self, crate, path, toks, folder):
        """Reads a module and its children, whose files lie in `folder`."""
        self.crate, self.path = crate, path
        self.defined, self.exported = set(), set()
        # Of each imported name its path; paths of `use path::*`; names and paths in the code.
        self.imports, self.globs, self.names, self.paths = {}, [], set(), []
        crate[path] = self
        i, depth = 0, 0
        while i < len(toks):
            token, name, then = (toks[i : i + 3] + ["", ""])[:3]
            before, end = toks[i - 1] if i else "", i + 1
            if FOR_TESTS.match("".join(toks[i : i + 8])):
                end = behind_item(toks, i)
            elif token == "mod" and then in ("{", ";"):
                end = behind_group(toks, i + 2) if then == "{" else i + 3
                files = [folder / f"{name}.rs", folder / name / "mod.rs"] if then == ";" else []
                text = "".join(f.read_text() for f in files if f.exists())
                child = tokens(text) or toks[i + 3 : end - 1]
                Module(crate, path + (name,), child, folder / name)
            elif token == "use" and name != "<":
                exported = before in ("pub", ")") and "pub" in toks[max(0, i - 5) : i]
                end = self.read_use(toks, i + 1, (), exported)
            elif re.match(r"[^\W\d]", token) and before not in (".", "::"):
                if token in DEFINES and not depth:
                    self.defined.add(then if token == "macro_rules" else name)
                while toks[end : end + 1] == ["::"] and re.match(r"\w", toks[end + 1]):
                    end += 2
                self.names.add(token)
                if end > i + 1 and (before != "$" or token == "crate"):
                    self.paths.append(tuple(toks[i:end:2]))
            depth += (token in "({[") - (token in ")}]") if end == i + 1 else 0
            i = end

    def read_use(self, toks, i, prefix, exported):
        """Reads the tree of a `use` that begins at `i`; returns the index behind it."""
        if toks[i] == "{":
            while toks[i] != "}":
                i = self.read_use(toks, i + 1, prefix, exported) if toks[i + 1] != "}" else i + 1
            return i + 1
        path = prefix if toks[i] == "self" and prefix else prefix + (toks[i],)
        if toks[i + 1] == "::":
            return self.read_use(toks, i + 2, path, exported)
        renamed = toks[i + 1] == "as"
        name = toks[i + 2] if renamed else path[-1]
        if name == "*":
            self.globs.append(path[:-1])
        else:
            self.imports[name if name != "_" else len(self.imports)] = path
            self.exported |= {name} if exported else set()
        return i + 3 if renamed else i + 1

    def lookup(self, name, depth):
        """What `name` means here: a module, or the path of the module that defines an item."""
        known = {"crate": (), "self": self.path, "super": self.path[:-1]}
        path = known.get(name, self.path + (name,))
        if path in self.crate:
            return self.crate[path]
        if name in self.defined:
            return self.path
        if depth > 20:
            return None
        if name in self.imports:
            target = self.imports[name]
            # `use bytes::...` in a module that imports a `bytes` is about the crate.
            return self.resolve(target, depth + 1) if target[0] != name else None
        globs = (self.resolve(glob, depth + 1) for glob in self.globs)
        found = (glob.lookup(name, depth + 1) for glob in globs if isinstance(glob, Module))
        return next(filter(None, found), None)

    def resolve(self, path, depth=0):
        at = self
        for i, name in enumerate(path):
            found = at.lookup(name, depth)
            if not isinstance(found, Module):
                # What only a macro defines is not seen: it belongs to the module that is named.
                return found or (at.path if i else None)
            at = found
        return at

    def uses(self):
        """The modules that this one imports from, each with the names that it takes."""
        paths = [p for n, p in self.imports.items() if n not in self.exported or n in self.names]
        by_glob = [(name,) for name in self.names - self.imports.keys() if self.globs]
        found = {}
        for path in paths + by_glob + self.paths:
            target = self.resolve(path)
            if isinstance(target, tuple) and target != self.path:
                found.setdefault(target, set()).add(path[-1])
        return found


def circles(root):
    """The imports that make circles in the crate with this root, a line each."""
    crate = {}
    Module(crate, (), tokens(root.read_text()), root.parent)
    uses = {path: module.uses() for path, module in crate.items()}
    reach = {path: set(targets) for path, targets in uses.items()}
    for via in reach:
        for path in reach:
            reach[path] |= reach[via] if via in reach[path] else set()
    name = lambda path: "::".join(("crate",) + path)
    return [f"{root}: {name(a)} imports {', '.join(sorted(names))} from {name(b)}"
            for a in uses for b, names in uses[a].items() if a in reach[b]]


def check_itself(folder):
    def found(**files):
        for name, text in files.items():
            (folder / f"{name}.rs").write_text(text)
        return len(circles(folder / "lib.rs"))

    lib = "mod a; mod b; pub use a::A; pub use b::{B, Other as C,}; /* use b::B */"
    assert found(lib=lib, a="pub struct A(super::B);", b="pub struct B; pub struct Other;") == 0
    # Both imports of a circle that goes through `lib.rs`.
    assert found(b="use crate::A; pub struct B(A);") == 2
    assert found(b="#[cfg(test)] mod tests { use crate::A; } pub struct B;") == 0
    # A parent that uses its child, and the child the parent.
    assert found(lib=lib + "const N: u8 = 1; fn f(_: A) {}", a="pub struct A([u8; crate::N]);") == 2
