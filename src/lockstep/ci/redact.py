"""Takes secrets and home folders out of what is handed on. Standard library only."""

from __future__ import annotations

import base64
import binascii
import io
import os
import pickletools
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from lockstep.ci.readings import DEEP, readings
from lockstep.ci.secret_rules import NAME, Span, goes_on, is_secret, keys, named, private_keys

LEAST_SECRET = 8
"""Shorter values of variables are left: `true` and `1` would be taken out of every line."""
HIDDEN = b"[hidden]"
SEARCH_S = 60.0
"""Most processor seconds for one file; an ordinary log needs one for each MB or two."""
WINDOW = 1 << 20
OVERLAP = 1 << 17
"""Bytes that are searched at once, and how many of them again with the next: more than any secret has."""

_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{12,}={0,2}")
_BASE64_LINES = re.compile(rb"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{12,}(?:\r?\n[ \t]*[A-Za-z0-9+/_-]+)+={0,2}")
_NO_BASE64 = re.compile(rb"[0-9a-f]+=*|[0-9A-F]+=*|[a-z_-]+|[\d-]+")
"""Hashes, numbers, words: most of what looks like base64 and is none."""
_STANDARD = bytes.maketrans(b"-_", b"+/")
_PRINTABLE = bytes(range(32, 127)) + b"\t\r\n"
_BREAK = re.compile(rb"[\r\n]+[ \t]*")
_REMEMBERED = 1 << 16


class NotUnderstood(ValueError):
    """It cannot be said that nothing secret is in it; the message says why."""


class Redactor:
    """Knows this process's secrets, home folder and checkout, and what `learn` was given."""

    def __init__(
        self, env: Mapping[str, str] = os.environ, home: Path | None = None, checkout: Path | None = None
    ) -> None:
        self._forms: list[bytes] = []
        self._values: set[bytes] = set()
        self._checked: dict[tuple[bytes, int], bool] = {}
        self._until = 0.0
        for name, value in env.items():
            if NAME.search(name):
                self._know(os.fsencode(value))
                # A private key: a log may have one line of it.
                for line in value.splitlines() if "\n" in value else ():
                    self._know(os.fsencode(line))
            if "://" in value:
                for start, end in named(os.fsencode(value)):
                    self._know(os.fsencode(value)[start:end])
                    self._know(os.fsencode(value)[start:end].partition(b":")[2])
        folders = [(checkout or Path.cwd(), b"."), (home or Path.home(), b"~")]
        short = [(os.fsencode(folder), short) for folder, short in folders if len(folder.parts) > 1]
        # A checkout lies in the home folder, as a rule: it is longer, and goes first.
        self._folders = sorted(short, key=lambda pair: len(pair[0]), reverse=True)

    def learn(self, arguments: object) -> None:
        """Take the secrets of a command (`*.command.json` as parsed) for known, wherever else they stand."""
        if isinstance(arguments, dict):
            arguments = list(arguments.values())
        if isinstance(arguments, list):
            for item in arguments:
                self.learn(item)
            data = "\0".join(item for item in arguments if isinstance(item, str))
            for option in re.finditer(r"(?:^|\0)--?[\w.-]+(?:=([^\0]*)|((?:\0(?!-)[^\0]*)*))", data):
                name = re.match(r"\0?-*([\w.-]+)", option[0])
                if name and NAME.search(name[1].replace("-", "_")) and "tokenizer" not in name[1]:
                    for value in (option[1] or option[2] or "").split("\0"):
                        if not re.fullmatch(r"[\w.]*/?[\w./-]*|\d*", value) or re.search(r"\d", value):
                            self._know(os.fsencode(value))
        elif isinstance(arguments, str):
            raw = os.fsencode(arguments)
            for start, end in named(raw):
                self._know(raw[start:end])

    def text(self, data: bytes) -> bytes:
        """Return UTF-8 text without secrets; its length may change. Raises NotUnderstood after SEARCH_S."""
        data = _hide(data, self._spans_of_all(data), lambda found: HIDDEN)
        for folder, short in self._folders:
            data = data.replace(folder, short)
        return data

    def binary(self, data: bytes) -> bytes:
        """Return a pickle, as PyTorch dumps its records, without secrets: nothing in it moves.

        Loads nothing. Raises NotUnderstood for all other formats, and for a pickle that names code.
        """
        spans: list[Span] = []
        self._until = time.process_time() + SEARCH_S
        for start, end, secret in _strings(data):
            if secret:
                spans.append((start, end))
            else:
                spans += ((start + first, start + last) for first, last in self._spans(data[start:end]))
        data = _hide(data, spans, lambda found: _fit(HIDDEN, len(found)))
        for folder, short in self._folders:
            data = data.replace(folder, _fit(short, len(folder)))
        if any(True for _ in self._plain(data)):
            raise NotUnderstood("a pickle with a secret that is in no text of it")
        return data

    def _know(self, value: bytes) -> None:
        if len(value) >= LEAST_SECRET and value not in self._values:
            self._values.add(value)
            self._checked.clear()
            self._forms = sorted({*self._forms, *_forms(value)}, key=len, reverse=True)

    def _spans_of_all(self, data: bytes) -> list[Span]:
        found: list[Span] = []
        begin, self._until = 0, time.process_time() + SEARCH_S
        while True:
            window = data[begin : begin + WINDOW]
            found += ((begin + start, begin + end) for start, end in self._spans(window))
            if begin + WINDOW >= len(data):
                return found
            begin += WINDOW - OVERLAP

    def _spans(self, data: bytes, deep: int = DEEP) -> list[Span]:
        """Return where secrets stand in `data`, in any form."""
        found: list[Span] = []
        for reading, joined in readings(data):
            if time.process_time() > self._until:
                raise NotUnderstood(f"the search for secrets took more than {SEARCH_S:.0f} s")
            if joined:
                for start, end in map(reading.origin, self._known(reading.data)):
                    found.append((start, start + len(data[start:end].rstrip())))
                own = list(private_keys(reading.data))
                own += (span for span in keys(reading.data) if re.search(rb"\d", reading.data[slice(*span)]))
                own = [span for span in own if reading.begins_a_word(span[0])]
                # What lies within one line has been found there: here two lines might mix.
                over = [(reading.origin(span), False) for span in own]
                over += ((reading.origin(span), True) for span in named(reading.data))
                found += (
                    _clipped(data, span)
                    for span, has_name in over
                    if (line := _BREAK.search(data, *span))
                    and (not has_name or is_secret(data[span[0] : line.start()]))
                )
            else:
                own = [*self._plain(reading.data), *self._coded(reading.data, deep)]
                found += (reading.origin(span) for span in own)
        return found

    def _plain(self, data: bytes) -> Iterator[Span]:
        yield from self._known(data)
        yield from (span for span in keys(data) if not _within_a_word(data, span[0]))
        yield from private_keys(data)
        yield from named(data)

    def _known(self, data: bytes) -> Iterator[Span]:
        for form in self._forms:
            at = data.find(form)
            while at >= 0:
                yield at, at + len(form)
                at = data.find(form, at + len(form))

    def _coded(self, data: bytes, deep: int) -> Iterator[Span]:
        """Yield the words in base64 that hold a secret."""
        for pattern in (_BASE64, _BASE64_LINES) if deep else ():
            for match in pattern.finditer(data):
                if not _NO_BASE64.fullmatch(match[0]) and self._hides(match[0], deep - 1):
                    yield _clipped(data, match.span())

    def _hides(self, blob: bytes, deep: int) -> bool:
        if (blob, deep) in self._checked:
            return self._checked[blob, deep]
        letters = re.sub(rb"[\s=]", b"", blob).translate(_STANDARD)
        found = False
        for skipped in range(4):  # the begin of the word may have been cut off
            rest = letters[skipped:]
            rest = rest[: len(rest) - 1] if len(rest) % 4 == 1 else rest
            try:
                # Without NUL: text in UTF-16.
                plain = binascii.a2b_base64(rest + b"=" * (-len(rest) % 4)).replace(b"\0", b"")
            except binascii.Error:
                continue
            # Other data: it may hold a text, but no more than the known secrets are looked for.
            if len(plain.translate(None, _PRINTABLE)) * 10 <= len(plain):
                found = found or bool(self._spans(plain, deep))
            else:
                found = found or any(True for _ in self._known(plain))
        if len(self._checked) < _REMEMBERED and len(blob) < 1024:
            self._checked[blob, deep] = found
        return found


def _within_a_word(data: bytes, at: int) -> bool:
    return at > 0 and (data[at - 1 : at].isalnum() or data[at - 1 : at] == b"_")


def _clipped(data: bytes, span: Span) -> Span:
    """Return the span up to where a secret ends that goes over ends of lines.

    That is the first line that begins with a word of its own, or the first word of a line that has more.
    """
    for line in _BREAK.finditer(data, *span):
        word = goes_on(data, line.end()) if line.end() < span[1] else 0
        if not word:
            return span[0], line.start()
        if word < span[1] and not _BREAK.match(data, word):
            return span[0], word
    return span


def _forms(secret: bytes) -> set[bytes]:
    """Return the value, in hexadecimal, and in base64 wherever it may begin there."""
    forms = {secret, secret.hex().encode(), secret.hex().upper().encode()}
    for before in range(3):
        coded = base64.b64encode(b"\0" * before + secret)
        # The first and the last letters depend on what stands around the value.
        inner = coded[(0, 2, 3)[before] : len(coded) - (0, 3, 2)[(before + len(secret)) % 3] - 1]
        if len(inner) >= LEAST_SECRET:
            forms |= {inner, inner.translate(bytes.maketrans(b"+/", b"-_"))}
    return forms


_SECRET_KEY = re.compile(
    rb"(?i)-{0,2}(?:[a-z0-9]+[-_.])*(?:passw(?:or)?d|passphrase|secret|api[-_]?key|pwd|token)"
)
"""A text of a pickle after which the next text is secret."""
_STORES = frozenset({"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"})
_RECALLS = frozenset({"GET", "BINGET", "LONG_BINGET"})


def _strings(data: bytes) -> Iterator[tuple[int, int, bool]]:
    """Yield where the texts of a pickle stand, and whether the text before says that one is secret.

    Raises NotUnderstood.
    """
    if data[:1] != b"\x80":
        raise NotUnderstood("neither text nor a pickle")
    end = 0
    memo: dict[int, bool] = {}
    named_now = False
    try:
        for code, argument, at in pickletools.genops(io.BytesIO(data)):
            place = at or 0
            end = place + 1
            if code.name in ("GLOBAL", "INST", "STACK_GLOBAL", "REDUCE", "PERSID"):
                raise NotUnderstood("a pickle that names code")
            if code.name in _STORES:
                memo[argument if isinstance(argument, int) else len(memo)] = named_now
            elif code.name in _RECALLS and isinstance(argument, int):
                named_now = memo.get(argument, False)
            if isinstance(argument, (str, bytes, bytearray)) and argument:
                text = isinstance(argument, str)
                word = (
                    argument.encode("utf-8", "surrogatepass")
                    if isinstance(argument, str)
                    else bytes(argument)
                )
                begin = data.find(word, place, place + 16 + len(word))
                if begin < 0 or not (text or word.isascii()):
                    raise NotUnderstood("a pickle with data that cannot be searched")
                yield begin, begin + len(word), named_now
                named_now = len(word) < 64 and _SECRET_KEY.fullmatch(word) is not None
    except NotUnderstood:
        raise
    except Exception as error:  # pickletools raises what it happens to meet
        raise NotUnderstood("neither text nor a pickle") from error
    if data[end:].strip(b"\0"):
        raise NotUnderstood("a pickle with something behind it")


def _hide(data: bytes, spans: list[Span], instead: Callable[[bytes], bytes]) -> bytes:
    parts, last = [], 0
    for start, end in _merged(spans):
        parts += [data[last:start], instead(data[start:end])]
        last = end
    return b"".join((*parts, data[last:]))


def _merged(spans: list[Span]) -> Iterator[Span]:
    begin = end = -1
    for start, stop in sorted(spans):
        if start > end or begin < 0:
            if begin >= 0:
                yield begin, end
            begin, end = start, stop
        else:
            end = max(end, stop)
    if begin >= 0:
        yield begin, end


def _fit(instead: bytes, length: int) -> bytes:
    return instead[:length].ljust(length, b"x")
