"""Where secrets stand in bytes that are read as they are: makers' forms of keys, and values with a name.

The forms of keys are those that gitleaks publishes (MIT, github.com/gitleaks/gitleaks, config/gitleaks.toml,
the rules that need no name beside the key), shortened to what tells a key from other words. A rule of theirs
asks for the whole length of a key; these take a shorter one too, as a key may be cut.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

Span = tuple[int, int]
"""Begin and end in the bytes, as in a slice."""

NAME = re.compile(
    r"(?i)token|secret|passw|passphrase|(?<!^)(?<!^old)pwd$|api_?key|access_?key|private_?key|credential|auth"
    r"|cookie|webhook"
)
"""Names of variables whose values are secret. PWD and OLDPWD are folders."""

# Each with a word that has to be there: a large file is searched for the word first, which is fast.
_KEYS: list[tuple[bytes, re.Pattern[bytes]]] = [
    (word.encode(), re.compile(form.encode()))
    for word, form in (
        ("hf_", r"hf_[A-Za-z0-9]{20,}"),
        ("api_org_", r"api_org_[A-Za-z0-9]{20,}"),
        *((f"gh{kind}_", rf"gh{kind}_[A-Za-z0-9]{{20,}}") for kind in "pousr"),
        ("github_pat_", r"github_pat_\w{20,}"),
        ("gl", r"gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat|ffct)-[\w-]{16,}"),
        ("gl", r"gl(?:sa|c)_[\w+/]{32,}={0,3}"),
        ("sk-", r"sk-[A-Za-z0-9_-]{20,}"),
        *((f"k_{kind}_", rf"[srp]k_{kind}_[A-Za-z0-9]{{10,}}") for kind in ("live", "test", "prod")),
        *((kind, rf"{kind}[A-Z0-9]{{16}}") for kind in ("AKIA", "ASIA", "ABIA", "ACCA")),
        ("ABSK", r"ABSK[A-Za-z0-9+/]{100,}={0,2}"),
        ("bedrock-api-key-", r"bedrock-api-key-[\w+/=-]{16,}"),
        ("xox", r"xox[a-z](?:\.xox[a-z])?-[\w-]{10,}"),
        ("xapp-", r"xapp-\d-[\w-]{10,}"),
        ("hooks.slack.com", r"hooks\.slack\.com/(?:services|workflows|triggers)/[\w/+-]{16,}"),
        ("webhook", r"webhooks?/\d{10,}/[\w-]{30,}"),
        ("webhook.office.com", r"webhook\.office\.com/webhookb2/[\w@/-]{30,}"),
        ("eyJ", r"eyJ[\w-]{14,}(?:\.[\w-]*){0,4}"),
        ("eyJrIjoi", r"eyJrIjoi[A-Za-z0-9]{40,}={0,3}"),
        ("npm_", r"npm_[A-Za-z0-9]{30,}"),
        ("pypi-", r"pypi-[\w-]{32,}"),
        ("AIza", r"AIza[\w-]{35}"),
        ("ya29.", r"ya29\.[\w-]{20,}"),
        ("GOCSPX-", r"GOCSPX-[\w-]{20,}"),
        ("SG.", r"SG\.[\w-]{16,}\.[\w-]{32,}"),
        ("_v1_", r"do[opr]_v1_[a-f0-9]{64}"),
        ("wandb_v1_", r"wandb_v1_\w{20,}"),
        ("hv", r"hv[sb]\.[\w-]{24,}"),
        ("dapi", r"dapi[a-f0-9]{32}(?:-\d)?"),
        ("nvapi-", r"nvapi-[\w-]{40,}"),
        ("gsk_", r"gsk_[A-Za-z0-9]{40,}"),
        ("r8_", r"r8_[A-Za-z0-9]{30,}"),
        ("pplx-", r"pplx-[A-Za-z0-9]{40,}"),
        ("shp", r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}"),
        ("tskey-", r"tskey-[\w-]{20,}"),
        ("AGE-SECRET-KEY-1", r"AGE-SECRET-KEY-1[0-9A-Z]{50,}"),
        ("ops_eyJ", r"ops_eyJ[\w+/-]{50,}={0,3}"),
        ("p8e-", r"p8e-[A-Za-z0-9]{32}"),
        ("LTAI", r"LTAI[A-Za-z0-9]{20}"),
        ("AKCp", r"AKCp[A-Za-z0-9]{69}"),
        ("cmVmd", r"cmVmd[A-Za-z0-9]{59}"),
        ("Q~", r"[\w~.]{3}\dQ~[\w~.-]{31,34}"),
        ("v1.0-", r"v1\.0-[a-f0-9]{24}-[a-f0-9]{100,}"),
        ("dp.pt.", r"dp\.pt\.[A-Za-z0-9]{40,}"),
        ("dt0c01.", r"dt0c01\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{64}"),
        ("EAA", r"EAA[AMC][\w-]{40,}"),
        ("sq0", r"sq0[a-z]{3}-[\w-]{22,60}"),
        ("fm", r"f(?:m1[ar]|m2)_[\w+/-]{60,}={0,3}"),
        ("fo1_", r"fo1_[\w-]{43}"),
        ("HRKU-", r"HRKU-[\w-]{50,}"),
        ("atlasv1", r"[A-Za-z0-9]{14}\.atlasv1\.[\w=-]{60,70}"),
        ("at.", r"[ps]at\.[\w-]{22}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{20}"),
        ("lin_api_", r"lin_api_[A-Za-z0-9]{40}"),
        ("ntn_", r"ntn_[A-Za-z0-9]{40,}"),
        ("sha256~", r"sha256~[\w-]{43}"),
        ("pscale_", r"pscale_(?:tkn|oauth|pw)_[\w=.-]{32,64}"),
        ("PMAK-", r"PMAK-[a-fA-F0-9]{24}-[a-fA-F0-9]{34}"),
        ("pnu_", r"pnu_[A-Za-z0-9]{36}"),
        ("pul-", r"pul-[a-f0-9]{40}"),
        ("rubygems_", r"rubygems_[a-f0-9]{48}"),
        ("xkeysib-", r"xkeysib-[a-f0-9]{64}-[A-Za-z0-9]{16}"),
        ("sntry", r"sntry[su]_[\w+/=]{40,}"),
        ("sgp_", r"sgp_\w{40,}"),
        ("SK", r"SK[0-9a-f]{32}"),
        (":AA", r"\d{8,10}:AA[\w-]{33}"),
    )
]

_LONG = 4096
"""Longest value with a name, in bytes."""
_QUOTED = rb"""(?:"((?:[^"\\\n]|\\.){1,%d})"?|'((?:[^'\\\n]|\\.){1,%d})'?""" % (_LONG, _LONG)
# A backslash before a quotation mark belongs to the text around: JSON within JSON.
_VALUE = (
    rb"(?:SecretStr\()?(?:[bru]{1,2}(?=['\"]))?"
    + _QUOTED
    + rb"""|((?:[^\s'"<>\\]|\\[^\s'"]){4,%d}))""" % _LONG
)
_STRONG = (
    rb"passw(?:or)?d|passphrase|secret|credentials?"
    rb"|(?:api|access|account|private|signing|encryption)[-_ ]?key"
)
_WORD = rb"(?:token|pwd|" + _STRONG + rb")"
_TYPE = rb"(?::[ \t]*(?:str|bytes|SecretStr|Optional\[str\]|str[ \t]*\|[ \t]*None)[ \t]*(?==))?"
# A value may be in the next line: after an equals sign, or as a block of YAML.
_IS = (
    rb"""['"]?\]?[ \t]*"""
    + _TYPE
    + rb"""(?:=>|:=|=(?:\r?\n)?|:(?:[ \t]*[|>][+-]?[ \t]*\r?\n)?)[ \t]*(?:[\[(]\s*){0,2}"""
)
_NAMED = re.compile(
    rb"(?i)(?:passw(?:or)?d|passphrase|(?<![a-z0-9])(?:pwd|" + _STRONG + rb"))[\w.-]{0,20}" + _IS + _VALUE
)
"""A name that says so, and its value: `API_KEY=x`, `"password": "x"`, `X-Api-Key: x`, `'api_key': ['x']`."""
_TOKEN = re.compile(rb"(?i)(?<![a-z0-9])token(?:[-_](?:id|key|value))?\d{0,2}" + _IS + _VALUE)
"""Apart, as `token` is in many names that are no secret: `max_tokens`, `tokenizer`, `token_ids`."""
_CAMEL = re.compile(rb"(?:Token|Secret|Password|ApiKey|AccessKey|AccountKey|PrivateKey)" + _IS + _VALUE)
_OPTION = re.compile(
    rb"(?i)--?(?:[a-z0-9]{1,32}[-_.]){0,6}"
    + _WORD
    + rb"""(?![a-z0-9_-])['"]?(?:[ \t]*,\s*|=|[ \t]+|\\?\n[ \t]*)(?!['"]?--)"""
    + _VALUE
)
"""An option with its value, on a command line or in a list: `--api-key x`, `["--api-key", "x"]`."""
_NAME = (
    rb"[\w.-]{0,64}?(?:(?:pwd|" + _STRONG + rb")[\w.-]{0,20}"
    rb"|(?<!eos_)(?<!bos_)(?<!pad_)(?<!unk_)(?<!sep_)(?<!image_)(?<!video_)token(?![a-z])(?:[-_](?:id|key|value))?)"
)
_APART = [
    # setenv HF_TOKEN x; set -gx HF_TOKEN x
    re.compile(rb"(?i)\b(?:setenv|set(?:[ \t]+-\w{1,8}){1,4})[ \t]+" + _NAME + rb"[ \t]+" + _VALUE),
    # {"name": "HF_TOKEN", "value": "x"}, in JSON, YAML and XML
    re.compile(
        rb"""(?i)\b(?:name|key)['"]?\s{0,8}[:=]\s{0,8}b?['"]?""" + _NAME
        + rb"""['"]?\s{0,8},?\s{0,64}['"]?value['"]?\s{0,8}[:=]\s{0,8}""" + _VALUE
    ),
    # ('HF_TOKEN', 'x')
    re.compile(rb"""(?i)\(\s{0,8}b?['"]""" + _NAME + rb"""['"]\s{0,8},\s{0,8}""" + _VALUE),
    # <password>x</password>
    re.compile(rb"(?i)<" + _NAME + rb"(?:[ \t][^<>]{0,200})?>\s{0,64}" + _VALUE),
]  # fmt: skip
"""A name that says so, and its value at some distance."""
_AND = re.compile(rb"\s*,\s*" + _QUOTED + rb")")
"""A further value in a list: vLLM's `--api-key` takes several."""
_AND_WORD = re.compile(rb"[ \t]+(?!-)(?=[^\s'\"]*\d)([^\s'\"<>\\]{8,%d})" % _LONG)
_NOT_SECRET = re.compile(
    rb"(?i)(?:none|null|true|false|undefined|\[?hidden\]?|[\d.]{1,7}"
    rb"|<\|?[\w ]+\|?>|\*+|\$\{?\w+\}?|\.\.\.)[,;)\]}]*$"
)
_SPECIAL = re.compile(rb"(?i)(?:pad|eos|bos|unk|sep|cls|mask|image|video|audio|stop|special|eot|eom)_$")
"""What comes before `token` in the settings of a tokenizer."""
_HEADERS = [
    (b"authorization", re.compile(
        rb"(?i)authorization['\"]?[ \t]*[:=,][ \t]*['\"]?"
        rb"(?:(?:basic|bearer|digest|token|apikey|negotiate)[ \t]+)?([^\s'\"][^\r\n'\"\\]{2,4096})"
    )),
    (b"bearer", re.compile(rb"(?i)bearer[ \t]+([\w.~+/=-]{8,})")),
    (b"cookie", re.compile(rb"(?i)cookie['\"]?[ \t]*[:=][ \t]*['\"]?([^\s'\"][^\r\n'\"\\]{3,4096})")),
    (b"sig", re.compile(rb"(?i)(?:[?&;]|\b)(?:x-(?:amz|goog)-)?(?:sig|signature)=([^\s'\"&;\\]{8,})")),
    (b"credential", re.compile(rb"(?i)x-(?:amz|goog)-credential=([^\s'\"&;\\]{8,})")),
    (b"key=", re.compile(rb"(?i)[?&]key=([^\s'\"&;\\]{8,})")),
    (b"://", re.compile(rb"://([^\s/:@'\"<>\\]{0,256}:[^\s\"<>\\]{1,512})@(?=[\w.\[-])")),
    (b"://", re.compile(rb"://([^\s/:@'\"<>\\]{8,512})@(?=[\w.\[-])")),
    (b"auth", re.compile(rb"(?i)(?<![a-z0-9])auth['\"]?[ \t]*[:=][ \t]*['\"]?([\w+/-]{16,}={0,2})")),
    (b"curl", re.compile(
        rb"(?is)\bcurl\b.{0,400}?['\"\s](?:-u|--user)['\"]?(?:\s*,\s*|=|[ \t]*)['\"]?"
        rb"([^\s'\":\\]{0,256}:[^\s'\"\\]{3,512})"
    )),
    (b"-p", re.compile(
        rb"(?is)\b(?:sshpass|mysql\w*|mariadb|docker['\",\s]+login)\b.{0,200}?"
        rb"['\"\s]-p['\"]?(?:\s*,\s*|[ \t]*)['\"]?"
        rb"([^\s'\"\\-][^\s'\"\\]{3,512})"
    )),
    (b"redis-cli", re.compile(
        rb"(?is)\bredis-cli\b.{0,200}?['\"\s]-a['\"]?(?:\s*,\s*|[ \t]+)['\"]?([^\s'\"\\]{4,512})"
    )),
    (b"login", re.compile(rb"(?i)\blogin[ \t]+\S{1,256}\s{1,64}password[ \t]+(\S{4,512})")),
]  # fmt: skip
"""Headers, signed addresses, a name with its password in an address, options of one letter: the first group
is the secret. Each with a word that has to be there, in small letters."""
_REST = re.compile(rb"\r?\n[ \t]*([^\s'\"<>\\]{1,%d})" % _LONG)
_FIRST_WORD = re.compile(rb"[^\s'\"<>\\]{1,%d}" % _LONG)
_NEW_LINE = re.compile(
    rb"[A-Za-z_][\w.-]*(?:[ \t]*=[^=\n]|:)|--[a-z]|\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d|[\[({#]"
    rb"|(?:[A-Z][a-z]{1,11}|[a-z]{1,4})(?![^\s'\"<>\\])"
)
"""What begins a line of its own, and does not go on with a value that the line before has broken off."""

_BEGIN = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----")
_END = re.compile(rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----")
_ARMOUR = re.compile(rb"(?:[A-Za-z0-9+/=\s]|\\[rnt]|[A-Z][\w-]{1,40}: [^\n]{0,200}\n)*")
_BODY = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=\\\r\n \t"
PEM_BYTES = 1 << 16
"""Longest private key that is looked for."""


def keys(data: bytes) -> Iterator[Span]:
    """Yield where keys in their makers' forms stand, also within a word."""
    for word, pattern in _KEYS:
        if word in data:
            yield from (match.span() for match in pattern.finditer(data))


def named(data: bytes) -> Iterator[Span]:
    """Yield where values stand that are secret by the name before them."""
    for found in _named(data):
        yield found
        # The value may go on in the next line, where a terminal or a logger has broken it off.
        if (rest := _REST.match(data, found[1])) and goes_on(data, rest.start(1)):
            yield rest.span(1)


def goes_on(data: bytes, at: int) -> int:
    """Return the end of the word at `at`, a line's first, if it may be the rest of a secret; 0 if not."""
    word = _FIRST_WORD.match(data, at)
    return 0 if word is None or _NEW_LINE.match(data, at) else word.end()


def is_secret(value: bytes) -> bool:
    """Return whether a value with a secret's name is one: not `None`, a small number or a placeholder."""
    return len(value) > 3 and not _NOT_SECRET.match(value)


def _named(data: bytes) -> Iterator[Span]:
    small = data.lower()
    for word, pattern in _HEADERS:
        if word in small:
            for match in pattern.finditer(data):
                if not _NOT_SECRET.match(match[1]):
                    yield match.span(1)
    for pattern in (_NAMED, _TOKEN, _CAMEL, _OPTION, *_APART):
        for match in pattern.finditer(data):
            group = next(number for number in (1, 2, 3) if match[number] is not None)
            before = data[max(0, match.start() - 12) : match.start()]
            if _NOT_SECRET.match(match[group]) or _SPECIAL.search(before) or _is_folder(match, before):
                continue
            yield match.span(group)
            place = match.end()
            before = data[match.start() : match.start(group)]
            if group != 3 and (pattern is _OPTION or b"[" in before or b"(" in before):
                while more := _AND.match(data, place):
                    value = 1 if more[1] is not None else 2
                    if more[value].startswith(b"-"):
                        break
                    yield more.span(value)
                    place = more.end()
            elif pattern is _OPTION:
                while more := _AND_WORD.match(data, place):
                    yield more.span(1)
                    place = more.end()


def _is_folder(match: re.Match[bytes], before: bytes) -> bool:
    """Whether this is the shell's variable for the current folder: `PWD=/x`, `OLDPWD=/x`."""
    return match[0].startswith((b"PWD=/", b'PWD": "/', b"PWD': '/")) and before[-1:] not in (b"_", b"-")


def private_keys(data: bytes) -> Iterator[Span]:
    """Yield where private keys stand, also one whose begin or end has been cut off."""
    ends = [end.span() for end in _END.finditer(data)]
    done = 0
    for begin in _BEGIN.finditer(data):
        if begin.start() < done:
            continue
        after = bisect_right(ends, begin.span())
        if after < len(ends) and ends[after][1] - begin.end() <= PEM_BYTES:
            done = ends[after][1]
        elif rest := _ARMOUR.match(data, begin.end(), begin.end() + PEM_BYTES):
            done = rest.end()
        yield begin.start(), done
    done = 0
    for start, end in ends:
        before = data[max(done, start - PEM_BYTES) : start]
        yield start - (len(before) - len(before.rstrip(_BODY))), end
        done = end
