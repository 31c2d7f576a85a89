"""Reads launch scripts: which engines a shell script would start, with which settings, and where each was written.

A small reader of shell, not a shell: nothing is run. It knows variables and their defaults (`${VAR:-False}`), arrays,
arithmetic, `export`, `VAR=x command`, `source`, and scripts that call scripts. Both sides of an `if` or `case` count,
so a variable may have several values; what only a run could tell (`$(nproc)`, `$1` without a caller) is unknown.
"""

import itertools
import re
from collections.abc import Callable

import msgspec

from sim.preflight import read_flags
from sim.preflight.launch import UNKNOWN, Fed, Launch, Place, PreflightError, Reading, Word
from sim.preflight.shell_words import ASSIGNMENT, NAME, RawWord, calculate, pieces, split_commands

VALUES_MAX = 8
"""Values followed for one variable, and for one word; more would only be repeats of the same branches."""
LAUNCHES_MAX = 64
DEPTH_MAX = 4
"""Scripts that call scripts, at most this deep: a script that calls itself ends here."""

CALLS_MAX = 2000
"""Calls of scripts followed in one reading; scripts that call each other could go on for ever."""
TEXT_MAX = 1 << 14
WORDS_MAX = 1 << 10
"""Characters of one word, and words of one array: `A=$A$A` doubles at every line."""

FindScript = Callable[[str], tuple[str, str] | None]
"""From the path in a `bash path` to (file, text) of a script at hand, or None."""


Values = list[Word]
"""What a variable may hold; more than one after a branch."""

_OPENING = frozenset(("if", "for", "while", "until", "case", "select"))
_CLOSING = frozenset(("fi", "done", "esac"))
_SKIPPED = frozenset(("then", "do", "else", "elif", "!", "{", "}", "time", "exec", "nohup", "env", "sudo", "in"))
_DECLARING = frozenset(("export", "declare", "local", "readonly", "typeset"))
_SHELLS = frozenset(("bash", "sh", "zsh", "source", "."))


class _Shell:
    """One script being read. Children share `reading` and get copies of the variables."""

    def __init__(self, file: str, find: FindScript, reading: Reading, depth: int = 0) -> None:
        self.file, self.find, self.reading, self.depth = file, find, reading, depth
        self.variables: dict[str, Values] = {}
        self.arrays: dict[str, list[Values]] = {}
        self.exported: set[str] = set()
        self.arguments: list[Values] | None = None
        self.branches = 0

    def read(self, text: str, line: int = 1) -> None:
        for raw in split_commands(text, line):
            self._command(raw)

    def _command(self, raw: list[RawWord]) -> None:
        while raw and raw[0].text in _SKIPPED | _OPENING | _CLOSING:
            keyword = raw[0].text
            self.branches += (keyword in _OPENING) - (keyword in _CLOSING)
            if keyword in ("for", "select", "case"):
                if keyword == "for" and len(raw) > 3 and raw[2].text == "in":
                    self._loop_variable(raw)
                return
            raw = raw[1:]
        if raw and raw[0].text in _DECLARING:
            self._declare(raw)
            return
        inline: dict[str, Values] = {}
        while raw and (match := ASSIGNMENT.match(raw[0].text)):
            name, adds = match[1], bool(match[2])
            if raw[0].text.endswith("=("):
                close = next((i for i, r in enumerate(raw) if r.text == ")"), len(raw))
                self._array(name, raw[1:close], adds)
                raw = raw[close + 1 :]
                continue
            inline[name] = self._assigned(name, raw[0], match.end(), adds)
            raw = raw[1:]
        if not raw:
            for name, values in inline.items():
                self._assign(name, values)
            return
        words = [values for r in raw for values in self._words(r)]
        if words:
            self._run(words, inline, Place(self.file, raw[0].line))

    def _loop_variable(self, raw: list[RawWord]) -> None:
        values = [word for r in raw[3:] for choices in self._words(r) for word in choices]
        self.variables[raw[1].text] = values[:VALUES_MAX] or [self._unknown(raw[1].line)]

    def _declare(self, raw: list[RawWord]) -> None:
        names = [r for r in raw[1:] if not r.text.startswith("-")]
        for r in names:
            match = ASSIGNMENT.match(r.text)
            name = match[1] if match else r.text
            if match and not r.text.endswith("=("):
                self._assign(name, self._assigned(name, r, match.end(), bool(match[2])))
            if raw[0].text == "export" or any("x" in r.text for r in raw[1:] if r.text.startswith("-")):
                self.exported.add(name)

    def _assigned(self, name: str, raw: RawWord, skip: int, adds: bool) -> Values:
        values = self._expand(RawWord(raw.text[skip:], raw.line))
        if adds and name in self.variables:
            before = self.variables[name]
            values = [Word((b.text + v.text)[:TEXT_MAX], (*v.places, *b.places)) for b in before for v in values]
        return values[:VALUES_MAX]

    def _assign(self, name: str, values: Values) -> None:
        if self.branches and name in self.variables:
            kept = [word for word in self.variables[name] if word.text not in {v.text for v in values}]
            values = (values + kept)[:VALUES_MAX]
        self.variables[name] = values

    def _array(self, name: str, raw: list[RawWord], adds: bool) -> None:
        words = [values for r in raw for values in self._words(r)]
        words = self.arrays.get(name, []) + words if adds or self.branches else words
        self.arrays[name] = words[:WORDS_MAX]

    # Expansion

    def _unknown(self, line: int) -> Word:
        return Word(UNKNOWN, (Place(self.file, line),))

    def _words(self, raw: RawWord) -> list[Values]:
        """A raw word as the command sees it: none or many for an array or an unquoted list, else one."""
        bare = raw.text.strip('"')
        if (match := re.fullmatch(r"\$\{(\w+)\[[@*]\]\}", bare)) and match[1] in self.arrays:
            here = Place(self.file, raw.line)
            return [[Word(w.text, (*w.places, here)) for w in values] for values in self.arrays[match[1]]]
        if re.fullmatch(r"\$\{\w+\[[@*]\](:[-+][^}]*)?\}", bare):
            return []
        if re.fullmatch(r"\$[@*]|\$\{[@*](:\d+)?\}", bare):
            return list(self.arguments or [])
        values = self._expand(raw)
        if raw.text.startswith("$") and all(" " in word.text for word in values):
            split = [[Word(part, word.places) for part in word.text.split()] for word in values]
            return [[word] for word in split[0]] if len(split) == 1 else split
        return [values]

    def _expand(self, raw: RawWord) -> Values:
        """All texts a raw word may stand for, quotes removed."""
        here = (Place(self.file, raw.line),)
        parts: list[Values] = []
        literal = ""
        for kind, piece in pieces(raw.text):
            if kind == "literal":
                literal += piece
                continue
            parts += [[Word(literal, here)], self._parameter(piece, raw.line)]
            literal = ""
        parts.append([Word(literal, here)])
        found: Values = []
        for combination in itertools.islice(itertools.product(*parts), VALUES_MAX):
            text = "".join(word.text for word in combination)
            text = text if len(text) <= TEXT_MAX else UNKNOWN
            origins = [place for word in combination[1::2] for place in word.places]
            found.append(Word(text, tuple(dict.fromkeys((*origins, *here)))))
        return found

    def _parameter(self, piece: str, line: int) -> Values:
        """The values of `$X`, `${X:-y}`, `$((…))` or `$(…)`."""
        unknown = [self._unknown(line)]
        if piece.startswith("$(("):
            return self._arithmetic(piece[3:-2], line)
        if piece.startswith(("$(", "`")):
            return unknown
        inner = piece[2:-1] if piece.startswith("${") else piece[1:]
        match = NAME.match(inner)
        if match is None:
            return unknown
        name, rest = match[0], inner[match.end() :]
        values = self.variables.get(name)
        if name.isdigit():
            given = self.arguments or []
            values = given[int(name) - 1] if 0 < int(name) <= len(given) else None
        if rest[:2] in (":-", ":=") or rest[:1] in ("-", "="):
            set_ones = [word for word in values or [] if word.text]
            return set_ones or self._expand(RawWord(rest.lstrip(":")[1:], line))
        if rest[:2] == ":+":
            return [Word("", (Place(self.file, line),))] if values is None else self._expand(RawWord(rest[2:], line))
        if rest in (",,", ",") and values is not None:
            return [Word(w.text.lower(), w.places) for w in values]
        return unknown if rest or values is None else values

    def _arithmetic(self, expression: str, line: int) -> Values:
        names = [n for n in dict.fromkeys(re.findall(r"[A-Za-z_]\w*", expression)) if n in self.variables]
        results: Values = []
        for choice in itertools.islice(itertools.product(*(self.variables[n] for n in names)), VALUES_MAX):
            number = calculate(expression, {n: w.text for n, w in zip(names, choice, strict=True)})
            places = (*(place for word in choice for place in word.places), Place(self.file, line))
            results.append(Word(UNKNOWN if number is None else str(number), places))
        return results

    # Commands

    def _run(self, words: list[Values], inline: dict[str, Values], place: Place) -> None:
        name = words[0][0].text
        script = next((w[0].text for w in words[1:] if not w[0].text.startswith("-")), "") if name in _SHELLS else name
        if name in _SHELLS or name.endswith(".sh"):
            after = next((i for i, w in enumerate(words) if w[0].text == script), 0) + 1
            self._call(script, words[after:], inline, place, shares=name in ("source", "."))
            return
        texts = [values[0].text for values in words]
        choices = itertools.islice(itertools.product(*words), LAUNCHES_MAX)
        try:
            if _starts_vllm(texts):
                self._launch([read_flags.read_vllm_words(chosen, place) for chosen in choices], inline)
            elif any(read_flags.looks_like_override(text) for text in texts):
                overrides = [values for values in words if read_flags.looks_like_override(values[0].text)]
                for chosen in itertools.islice(itertools.product(*overrides), LAUNCHES_MAX):
                    self._launch(read_flags.read_overrides(chosen), inline)
        except PreflightError as error:
            self.reading.errors.append(f"{place}: {error}")

    def _launch(self, launches: list[Launch], inline: dict[str, Values]) -> None:
        allow = {**self.variables, **inline}.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", [])
        longer = any(word.text.lower() in ("1", "true") for word in allow)
        for launch in launches:
            self.reading.launches.append(msgspec.structs.replace(launch, allow_longer_context=longer))

    def _call(
        self, script: str, arguments: list[Values], inline: dict[str, Values], place: Place, *, shares: bool
    ) -> None:
        handed = {name: values for name, values in self.variables.items() if shares or name in self.exported} | inline
        via = {n: [Word(w.text, tuple(dict.fromkeys((*w.places, place)))) for w in v] for n, v in handed.items()}
        self.reading.calls += 1
        if self.reading.calls == CALLS_MAX:
            self.reading.errors.append(
                f"{place}: more than {CALLS_MAX} calls of scripts; those after it are not followed"
            )
        if self.reading.calls >= CALLS_MAX:
            return
        found = self.find(script) if script and UNKNOWN not in script else None
        if found is None or self.depth >= DEPTH_MAX:
            for name, values in via.items():
                self.reading.unread += [Fed(name, word.text, script, word.places) for word in values]
            return
        child = _Shell(found[0], self.find, self.reading, self.depth + 1)
        child.variables, child.exported, child.arguments = via, set(via), arguments
        child.read(found[1])
        if shares:
            self.variables |= child.variables
            self.arrays |= child.arrays
            self.exported |= child.exported


def _starts_vllm(texts: list[str]) -> bool:
    return ("vllm" in (text.rpartition("/")[2] for text in texts) and "serve" in texts) or any(
        text.startswith("vllm.entrypoints") for text in texts
    )


def read_shell(
    text: str,
    file: str,
    find: FindScript = lambda _: None,
    *,
    line: int = 1,
    env: dict[str, Values] | None = None,
    reading: Reading | None = None,
) -> Reading:
    """What the script would launch. `env` is its environment, `line` the line of the file that the text begins at."""
    shell = _Shell(file, find, Reading() if reading is None else reading)
    shell.variables = dict(env or {})
    shell.exported = set(shell.variables)
    shell.read(text, line)
    return shell.reading
