"""Takes secrets and home folders out of what is handed on. Standard library only.

Text is searched as it is, and as it reads once colours are taken away, JSON's escapes and URL quotation are
undone, lines are joined, base64 is decoded. What is found in such a view is hidden in the original.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import pickletools
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

SECRET_NAME = re.compile(
    r"(?i)token|secret|passw|passphrase|_pwd$|api_?key|access_?key|private_?key|credential|auth|cookie|webhook"
)
"""Names of variables whose values are secret."""
LEAST_SECRET = 8
"""Shorter values are left: `true` and `1` would be taken out of every line."""
HIDDEN = b"[hidden]"
Span = tuple[int, int]


class NotUnderstood(ValueError):
    """The format is not known well enough to say that nothing secret is in it."""


# The forms in which makers write their keys, after the rules that gitleaks publishes (MIT,
# github.com/gitleaks/gitleaks, config/gitleaks.toml), shortened to what tells them from other words. Each
# with a word that has to be there, so that a large file is searched once for each word and no more.
_KEYS: list[tuple[bytes, re.Pattern[bytes]]] = [
    (word.encode(), re.compile(form.encode()))
    for word, form in (
        ("hf_", r"hf_[A-Za-z0-9]{20,}"),
        ("api_org_", r"api_org_[A-Za-z0-9]{20,}"),
        *((f"gh{kind}_", rf"gh{kind}_[A-Za-z0-9]{{20,}}") for kind in "pousr"),
        ("github_pat_", r"github_pat_\w{20,}"),
        ("gl", r"gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat|ffct)-[\w-]{16,}"),
        ("sk-", r"sk-[A-Za-z0-9_-]{20,}"),
        ("_live_", r"[srp]k_live_[A-Za-z0-9]{10,}"),
        ("_test_", r"[srp]k_test_[A-Za-z0-9]{10,}"),
        *((kind, rf"{kind}[A-Z0-9]{{16}}") for kind in ("AKIA", "ASIA", "ABIA", "ACCA")),
        ("ABSK", r"ABSK[A-Za-z0-9+/]{100,}={0,2}"),
        ("xox", r"xox[a-z](?:\.xox[a-z])?-[\w-]{10,}"),
        ("xapp-", r"xapp-\d-[\w-]{10,}"),
        ("hooks.slack.com", r"hooks\.slack\.com/(?:services|workflows|triggers)/[\w/+-]{16,}"),
        ("webhook", r"webhooks?/\d{10,}/[\w-]{30,}"),
        ("eyJ", r"(?<![\w-])eyJ[\w-]{8,}\.(?:eyJ)?[\w-]{8,}(?:\.[\w-]*){0,3}"),
        ("npm_", r"npm_[A-Za-z0-9]{30,}"),
        ("pypi-", r"pypi-[\w-]{32,}"),
        ("AIza", r"AIza[\w-]{35}"),
        ("ya29.", r"ya29\.[\w-]{20,}"),
        ("GOCSPX-", r"GOCSPX-[\w-]{20,}"),
        ("SG.", r"SG\.[\w-]{16,}\.[\w-]{32,}"),
        ("do", r"do[opr]_v1_[a-f0-9]{64}"),
        ("hvs.", r"hvs\.[\w-]{24,}"),
        ("dapi", r"dapi[a-f0-9]{32}(?:-\d)?"),
        ("nvapi-", r"nvapi-[\w-]{40,}"),
        ("gsk_", r"gsk_[A-Za-z0-9]{40,}"),
        ("r8_", r"r8_[A-Za-z0-9]{30,}"),
        ("shp", r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}"),
        ("tskey-", r"tskey-[\w-]{20,}"),
        ("AGE-SECRET-KEY-1", r"AGE-SECRET-KEY-1[0-9A-Z]{50,}"),
        ("wandb_v1_", r"wandb_v1_\w{20,}"),
        (":AA", r"\d{8,10}:AA[\w-]{33}"),
    )
]

_WORD = (
    rb"(?:token|secret|passw(?:or)?d|passphrase|pwd|credentials?"
    rb"|(?:api|access|account|private|secret|signing)[-_ ]?key)"
)
_VALUE = rb"""(?:"((?:[^"\\\n]|\\.){1,4096})"?|'((?:[^'\\\n]|\\.){1,4096})'?|([^\s'"<>]{4,4096}))"""
_NAMED = re.compile(
    rb"(?i)(?:(?<![a-z0-9])|(?<=[-_])|(?<=pg))" + _WORD + rb"(?:[-_](?:id|key|value))?"
    rb"""['"]?[ \t]*(?:=>|[=:])[ \t]*""" + _VALUE
)
"""A name that says so, and its value: `API_KEY=x`, `"password": "x"`, `X-Api-Key: x`."""
_CAMEL = re.compile(
    rb"""(?:Token|Secret|Password|ApiKey|AccessKey|AccountKey|PrivateKey)['"]?[ \t]*[=:][ \t]*""" + _VALUE
)
_OPTION = re.compile(
    rb"(?i)--?(?:[a-z0-9]+[-_.]){0,6}"
    + _WORD
    + rb"""(?![a-z0-9_-])['"]?(?:[ \t]*,\s*|=|[ \t]+)(?!['"]?--)"""
    + _VALUE
)
"""An option with its value, on a command line or in a list: `--api-key x`, `["--api-key", "x"]`."""
_LISTED = re.compile(
    rb"""(?i)['"]--?(?:[a-z0-9]+[-_.]){0,6}"""
    + _WORD
    + rb"""['"]((?:\s*,\s*"(?!-)(?:[^"\\\n]|\\.){1,4096}"){1,64})"""
)
"""vLLM's `--api-key` takes several: all of a list up to the next option."""
_NOT_SECRET = re.compile(
    rb"(?i)(?:none|null|true|false|\[hidden\]|[\d.]{1,7}|<\|?[\w ]+\|?>|\*+|\$\{?\w+\}?)$"
)
_SPECIAL = re.compile(rb"(?i)(?:pad|eos|bos|unk|sep|cls|mask|image|video|audio|stop|special)_$")
"""Tokens of a tokenizer."""
_OTHER = [
    (b"authorization", re.compile(
        rb"(?i)authorization['\"]?[ \t]*[:=,][ \t]*['\"]?"
        rb"(?:(?:basic|bearer|digest|token|apikey|negotiate)[ \t]+)?([^\s'\"][^\r\n'\"]{2,})"
    )),
    (b"bearer", re.compile(rb"(?i)bearer[ \t]+([\w.~+/=-]{8,})")),
    (b"cookie", re.compile(rb"(?i)cookie['\"]?[ \t]*[:=][ \t]*['\"]?([^\s'\"][^\r\n'\"]{3,})")),
    (b"sig", re.compile(rb"(?i)(?:[?&;]|\b)(?:x-(?:amz|goog)-)?(?:sig|signature)=([^\s'\"&;]{8,})")),
    (b"credential", re.compile(rb"(?i)x-(?:amz|goog)-credential=([^\s'\"&;]{8,})")),
    (b"key=", re.compile(rb"(?i)[?&]key=([^\s'\"&;]{8,})")),
    (b"://", re.compile(rb"://([^\s/:@'\"<>]{0,256}:[^\s'\"<>]{1,1024})@(?=[\w.\[-])")),
    (b"://", re.compile(rb"://([^\s/:@'\"<>]{8,1024})@(?=[\w.\[-])")),
]  # fmt: skip
"""Headers, signed addresses, a name with its password in an address: the first group is hidden."""
_BEGIN = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----")
_END = re.compile(rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----")
_ARMOUR = re.compile(rb"(?:[A-Za-z0-9+/=\s]|\\[rnt]|[\w-]+: [^\n]*\n)*")
PEM_BYTES = 1 << 16
_COLOUR = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[\"'\\/nrt])")
_QUOTED = re.compile(rb"%[0-9a-fA-F]{2}")
_BREAK = re.compile(rb"\r?\n[ \t]*")
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{12,}={0,2}")
_BASE64_LINES = re.compile(rb"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{12,}(?:\r?\n[A-Za-z0-9+/_-]+)+={0,2}")
_SIMPLE = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
DEEP = 2
"""How often base64 is decoded again, and escapes of escapes undone."""


class _View:
    """A text with pieces exchanged, which knows where each of its bytes stood."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._here: list[int] = [0]
        self._there: list[int] = [0]
        self._under: _View | None = None

    def without(self, pattern: re.Pattern[bytes], instead: Callable[[bytes], bytes]) -> _View | None:
        """The view with every match exchanged; None if there is no match."""
        parts: list[bytes] = []
        here, there, size, last = [0], [0], 0, 0
        for match in pattern.finditer(self.data):
            piece = instead(match[0])
            parts += (self.data[last : match.start()], piece)
            size += match.start() - last
            here.append(size)
            there.append(match.start())
            size += len(piece)
            here.append(size)
            there.append(match.end())
            last = match.end()
        if not parts:
            return None
        view = _View(b"".join((*parts, self.data[last:])))
        view._here, view._there, view._under = here, there, self
        return view

    def origin(self, span: Span) -> Span:
        """Where `span` stood in the text that all began with."""
        if self._under is None:
            return span
        first, last = self._at(span[0]), self._at(span[1] - 1) + 1
        after = bisect_right(self._here, span[1]) - 1
        if self._here[after] == span[1]:
            last = max(last, self._there[after])
        return self._under.origin((first, max(first + 1, last)))

    def _at(self, place: int) -> int:
        index = bisect_right(self._here, place) - 1
        found = self._there[index] + place - self._here[index]
        return min(found, self._there[index + 1]) if index + 1 < len(self._there) else found


class Redactor:
    """Knows this process's secrets, home folder and checkout."""

    def __init__(
        self, env: Mapping[str, str] = os.environ, home: Path | None = None, checkout: Path | None = None
    ) -> None:
        values = {value for name, value in env.items() if SECRET_NAME.search(name)}
        values |= {password for value in env.values() if (password := _password(value))}
        secrets = {os.fsencode(value) for value in values if len(value) >= LEAST_SECRET}
        self._secrets = sorted({form for value in secrets for form in _forms(value)}, key=len, reverse=True)
        folders = [(checkout or Path.cwd(), b"."), (home or Path.home(), b"~")]
        named = [(os.fsencode(folder), short) for folder, short in folders if len(folder.parts) > 1]
        # A checkout lies in the home folder, as a rule: it is longer, and goes first.
        self._folders = sorted(named, key=lambda pair: len(pair[0]), reverse=True)

    def text(self, data: bytes) -> bytes:
        """For lines that a person reads; their length may change."""
        data = _hide(data, self._spans(data), lambda found: HIDDEN)
        for folder, short in self._folders:
            data = data.replace(folder, short)
        return data

    def binary(self, data: bytes) -> bytes:
        """For a pickle, as PyTorch dumps its records: nothing moves. Raises NotUnderstood for all else."""
        spans: list[Span] = []
        named = False
        for start, end in _strings(data):
            word = data[start:end]
            inner = [(start, end)] if named else [(start + a, start + b) for a, b in self._spans(word)]
            spans += inner
            named = len(word) < 64 and SECRET_NAME.search(word.decode(errors="replace")) is not None
        data = _hide(data, spans, lambda found: _fit(HIDDEN, len(found)))
        for folder, short in self._folders:
            data = data.replace(folder, _fit(short, len(folder)))
        return data

    def _spans(self, data: bytes, deep: int = DEEP) -> list[Span]:
        """Where secrets stand in `data`, in any form."""
        found: list[Span] = []
        for view, joined in _views(data):
            own = self._joined(view) if joined else self._plain(view.data, deep)
            found += (view.origin(span) for span in own)
        return found

    def _plain(self, data: bytes, deep: int) -> list[Span]:
        found = list(self._known(data))
        for word, pattern in _KEYS:
            if word in data:
                found += (m.span() for m in pattern.finditer(data) if not _within_a_word(data, m.start()))
        found += _pem(data)
        small = data.lower()
        for word, pattern in _OTHER:
            if word in small:
                found += (match.span(1) for match in pattern.finditer(data))
        for pattern in (_NAMED, _CAMEL, _OPTION):
            for match in pattern.finditer(data):
                group = next(number for number in (1, 2, 3) if match[number] is not None)
                before = data[max(0, match.start() - 12) : match.start()]
                if not _NOT_SECRET.match(match[group]) and not _SPECIAL.search(before):
                    found.append(match.span(group))
        for match in _LISTED.finditer(data):
            found += (
                (match.start(1) + value.start(1), match.start(1) + value.end(1))
                for value in re.finditer(rb'"((?:[^"\\\n]|\\.)+)"', match[1])
            )
        if deep:
            for pattern in (_BASE64, _BASE64_LINES):
                found += (match.span() for match in pattern.finditer(data) if self._hides(match[0], deep - 1))
        return found

    def _joined(self, view: _View) -> Iterator[Span]:
        """Where a known secret or a maker's key goes over an end of line."""
        yield from self._known(view.data)
        for word, pattern in _KEYS:
            if word in view.data:
                for match in pattern.finditer(view.data):
                    if re.search(rb"\d", match[0]):
                        under = view._under.data if view._under else view.data
                        if not _within_a_word(under, view._at(match.start())):
                            yield match.span()

    def _known(self, data: bytes) -> Iterator[Span]:
        for secret in self._secrets:
            at = data.find(secret)
            while at >= 0:
                yield at, at + len(secret)
                at = data.find(secret, at + len(secret))

    def _hides(self, blob: bytes, deep: int) -> bool:
        """Whether what base64 makes of `blob` holds a secret."""
        letters = re.sub(rb"[\s=]", b"", blob).translate(bytes.maketrans(b"-_", b"+/"))
        for skipped in range(4):
            rest = letters[skipped:]
            rest = rest[: len(rest) - 1] if len(rest) % 4 == 1 else rest
            try:
                plain = base64.b64decode(rest + b"=" * (-len(rest) % 4))
            except binascii.Error:
                continue
            if (
                plain
                and len(plain.translate(None, _PRINTABLE)) * 10 <= len(plain)
                and self._spans(plain, deep)
            ):
                return True
        return False


_PRINTABLE = bytes(range(32, 127)) + b"\t\r\n"


def _views(data: bytes) -> Iterator[tuple[_View, bool]]:
    """The text as it is and as it can be read, and of the last whether its lines are joined."""
    view = _View(data)
    yield view, False
    steps: list[tuple[re.Pattern[bytes], Callable[[bytes], bytes]]] = [(_COLOUR, lambda found: b"")]
    steps += [(_ESCAPE, _unescape), (_COLOUR, lambda found: b"")] * DEEP
    steps += [(_QUOTED, lambda found: bytes([int(found[1:], 16)]))] * DEEP
    joined = view.without(_BREAK, lambda found: b"")
    if joined is not None:
        yield joined, True
    changed = False
    for pattern, instead in steps:
        other = view.without(pattern, instead)
        if other is not None:
            view, changed = other, True
            yield view, False
    if changed and (joined := view.without(_BREAK, lambda found: b"")) is not None:
        yield joined, True


def _unescape(found: bytes) -> bytes:
    if found[1:2] in (b"u", b"x"):
        return chr(int(found[2:], 16)).encode(errors="replace")
    return _SIMPLE.get(found[1:], found[1:])


def _pem(data: bytes) -> Iterator[Span]:
    """Private keys; also one whose begin or end has been cut off."""
    done = 0
    for begin in _BEGIN.finditer(data):
        if begin.start() < done:
            continue
        end = _END.search(data, begin.end(), begin.end() + PEM_BYTES)
        rest = _ARMOUR.match(data, begin.end(), begin.end() + PEM_BYTES)
        done = end.end() if end else rest.end() if rest else begin.end()
        yield begin.start(), done
    for end in _END.finditer(data):
        if end.start() >= done:
            before = data[max(done, end.start() - PEM_BYTES) : end.start()]
            body = len(before) - len(
                before.rstrip(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=\\\r\n \t")
            )
            yield end.start() - body, end.end()
            done = end.end()


def _within_a_word(data: bytes, at: int) -> bool:
    return at > 0 and (data[at - 1 : at].isalnum() or data[at - 1 : at] == b"_")


def _password(value: str) -> str | None:
    """The password of an address; it may hold `@` and `/`."""
    match = re.search(r"://[^\s/:@]*:(\S+)@", value)
    return match[1] if match else None


def _forms(secret: bytes) -> set[bytes]:
    """The value, in hexadecimal, and in base64 wherever it may begin there."""
    forms = {secret, secret.hex().encode(), secret.hex().upper().encode()}
    for before in range(3):
        coded = base64.b64encode(b"\0" * before + secret)
        # The first and the last letters depend on what stands around the value.
        inner = coded[(0, 2, 3)[before] : len(coded) - (0, 3, 2)[(before + len(secret)) % 3] - 1]
        if len(inner) >= LEAST_SECRET:
            forms |= {inner, inner.translate(bytes.maketrans(b"+/", b"-_"))}
    return forms


def _strings(data: bytes) -> Iterator[Span]:
    """Where the strings of a pickle stand. Loads nothing. Raises NotUnderstood."""
    stream, end = io.BytesIO(data), 0
    try:
        for code, argument, at in pickletools.genops(stream):
            end = (at or 0) + 1
            if (
                isinstance(argument, (str, bytes, bytearray))
                and argument
                and code.name not in ("GLOBAL", "INST")
            ):
                word = (
                    argument.encode("utf-8", "surrogatepass")
                    if isinstance(argument, str)
                    else bytes(argument)
                )
                begin = data.find(word, at or 0, (at or 0) + 16 + len(word))
                if begin < 0 or (not isinstance(argument, str) and not word.isascii()):
                    raise NotUnderstood("a pickle with data that cannot be searched")
                yield begin, begin + len(word)
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
