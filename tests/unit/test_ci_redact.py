"""Secrets of every kind, planted in every form and place: none may be in what is collected."""

from __future__ import annotations

import base64
import bz2
import gzip
import html
import io
import json
import os
import pickle
import random
import re
import string
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.ci import contents, folders
from lockstep.ci.collect import Collector
from lockstep.ci.folders import files
from lockstep.ci.redact import HIDDEN, NotUnderstood, Redactor

HOME = Path("/home/alice")
ENV = {
    "SERVICE_TOKEN": 'Zk3/9fQ+xp@Lm"7v&R2',
    "MYSQL_PWD": "sql/pa55@w0rd",
    "BROKER": "redis://:br0ker/p@ss@host:6379/0",
}


def letters(seed: random.Random, count: int, among: str = string.ascii_letters + string.digits) -> str:
    return "7" + "".join(seed.choice(among) for _ in range(count - 1))


def made(seed: random.Random) -> dict[str, tuple[str, str]]:
    """Of each kind the part that must not be seen, and the words around it."""
    key = letters(seed, 24)
    upper = letters(seed, 16, string.ascii_uppercase + string.digits)
    keys = {
        "hugging face": f"hf_{letters(seed, 34)}",
        "github": f"ghp_{letters(seed, 36)}",
        "aws": f"AKIA{upper}",
        "aws session": f"ASIA{upper}",
        "npm": f"npm_{letters(seed, 36)}",
        "pypi": f"pypi-AgEIcHlwaS5vcmc{letters(seed, 60)}",
        "google": f"AIza{letters(seed, 35)}",
        "jwt": f"eyJ{letters(seed, 20)}.eyJ{letters(seed, 40)}.{letters(seed, 43)}",
        "slack": f"xoxb-{letters(seed, 30)}",
        "slack hook": f"hooks.slack.com/services/T{upper[:8]}/B{upper[:8]}/{key}",
        "openai": f"sk-{letters(seed, 40)}",
    }
    odd = f"{letters(seed, 6)}@{letters(seed, 5)}/{letters(seed, 6)}"
    return {name: (value, value) for name, value in keys.items()} | {
        "option": (key, f"vllm serve m --api-key {key} --port 8000"),
        "option with =": (key, f"vllm serve m --api-key={key} --port 8000"),
        "list of arguments": (key, json.dumps(["serve", "--api-key", key, "--port", "8000"])),
        "several in a list": (key, json.dumps(["--api-key", "first-of-them", key, "--port", "8000"])),
        "redis": (key, f"redis://:{key}@host:6379/0"),
        "password with @ and /": (odd, f"postgres://bob:{odd}@db.example/x"),
        "variable": (odd, f"MYSQL_PWD={odd}"),
        "passphrase": (key, f'passphrase: "{key}"'),
        "basic": (key, f"Authorization: Basic {key}"),
        "vllm's own line": (key, f"non-default args: {{'api_key': ['{key}'], 'port': 8000}}"),
        "no separator": (key, f"dbpassword={key}"),
        "user of curl": (key, f"curl -s -u bob:{key} https://x.example/"),
        "netrc": (key, f"machine api.wandb.ai login user password {key}"),
        "docker's settings": (key, f'{{"auths": {{"r": {{"auth": "{key}"}}}}}}'),
        "secret with a prefix": (key, f"AWS_SECRET_ACCESS_KEY={key}"),
        "bearer": (key, f"authorization: bearer {key}"),
        "header": (key, f"X-Api-Key: {key}"),
        "signature": (key, f"https://x.example/blob?sv=2024&sig={key}&se=1"),
        "pem": (
            key,
            f"-----BEGIN RSA PRIVATE KEY-----\nMIIE{key}\n{letters(seed, 64)}\n-----END RSA PRIVATE KEY-----",
        ),
        "environment": (ENV["SERVICE_TOKEN"], ENV["SERVICE_TOKEN"]),
        "password in the environment": ("br0ker/p@ss", "connecting with br0ker/p@ss now"),
    }


KINDS = sorted(made(random.Random(0)))
KNOWN = ("hugging face", "github", "aws", "aws session", "npm", "google", "slack", "openai", "environment")
"""Recognised by themselves, so also when a line ends within them."""


def plain(words: str) -> str:
    return words


FORMS: dict[str, Callable[[str], str]] = {
    "plain": plain,
    "json": json.dumps,
    "json in json": lambda words: json.dumps(json.dumps({"said": words})),
    "unicode escapes": lambda words: '{"m": "' + "".join(f"\\u{ord(c):04x}" for c in words) + '"}',
    "entities": lambda words: f'<system-out message="{html.escape(words)}"/>',
    "url": lambda words: "GET /?q=" + quote(words, safe=""),
    "base64": lambda words: "blob " + base64.b64encode(f"say {words}".encode()).decode() + " end",
    "base64 in lines": lambda words: base64.encodebytes(f"say {words}".encode()).decode(),
    "urlsafe base64": lambda words: base64.urlsafe_b64encode(f"say {words}".encode()).decode(),
}


def redactor() -> Redactor:
    return Redactor(ENV, HOME, HOME / "lockstep")


def seen(secret: str, data: bytes) -> bool:
    """Whether the secret, or its greater part, can be read in `data`."""
    text = data.decode(errors="replace")
    undone = text
    for _ in range(3):
        undone = html.unescape(undone)
        undone = undone.replace("\\n", "\n").replace("\\/", "/").replace('\\"', '"').replace("\\\\", "\\")
    parts = [secret[at : at + max(8, len(secret) // 2)] for at in (0, len(secret) // 2)]
    return any(part in whole for part in parts if len(part) >= 8 for whole in (text, undone))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_secret_of_any_kind_in_any_form_is_left(kind: str, form: str, seed: int) -> None:
    secret, words = made(random.Random(seed))[kind]
    coded = FORMS[form](words)
    done = redactor().text(f"12:00:01 INFO begin\n{coded}\nlast line\n".encode())
    assert HIDDEN in done
    assert not seen(secret, done)
    if "base64" in form:
        assert coded.strip().split()[-2 if form == "base64" else 0].encode() not in done
    if form == "unicode escapes":
        assert "".join(f"\\u{ord(c):04x}" for c in secret).encode() not in done
    if form == "url":
        assert quote(secret, safe="").encode() not in done
    assert done.startswith(b"12:00:01 INFO begin\n")
    assert done.endswith(b"last line\n")


@pytest.mark.parametrize("apart", ["\n", "\r\n    ", "\x1b[31m", "\x1b[0m", "\\u001b[1m"])
@pytest.mark.parametrize("kind", KNOWN)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32), share=st.floats(0.1, 0.9))
def test_a_secret_that_a_line_or_a_colour_parts(kind: str, apart: str, seed: int, share: float) -> None:
    secret, _ = made(random.Random(seed))[kind]
    cut = max(1, int(len(secret) * share))
    done = redactor().text(f"key {secret[:cut]}{apart}{secret[cut:]}\nlast".encode())
    assert HIDDEN in done
    for part in (secret[:cut], secret[cut:]):
        # What follows an end of line and reads as a word of its own stays (docs/ci.md).
        word = part is not secret[:cut] and re.match(r"(?:[A-Z][a-z]{1,11}|[a-z]{1,4})(?!\S)", part)
        assert len(part) < 4 or word or part.encode() not in done


ORDINARY = [
    '{"k": "call", "g": "trainer.world", "n": 1024, "op": "allreduce", "at": "/x/torch/c10d.py:2810"}',
    '  File "/opt/venv/lib/python3.11/site-packages/vllm/v1/worker/gpu_model_runner.py", line 2801',
    "commit 3f786850e387550fdab836ed7e6dc881de23001b",
    "sha256:2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
    "checkpoint-4/model-00001-of-00002.safetensors 4983508568 loss=0.6931471805599453",
    "tokenizer: Qwen2Tokenizer, max_tokens=128, pad_token: <|endoftext|>, token_ids=[151643, 8948]",
    "NCCL INFO comm 0x55d5c8f2a0b0 rank 3 nranks 8 cudaDev 3 commId 0x8f3c2f4d5e6a7b8c - Init COMPLETE",
    "init_method=tcp://127.0.0.1:29500 http://localhost:8000/v1/models git+https://host.example/a/b@v1.2",
    '{"argv": ["swift", "rlhf", "--model", "/tmp/m", "--vllm_server_port", "8000"], "env": {"A": "1"}}',
    "authentication is off; basic configuration; api_key=None password: null",
    "PWD=/work/run OLDPWD=/tmp/x 123e4567-e89b-12d3-a456-426614174000 max_model_len: 32768",
    'File "/x/auth/token_bucket.py", line 3, in get_token\n    return self.tokens[key]  # 1.5 GiB',
    "line ends with hf_overrides\nloading the weights of 2 shards",
]


@pytest.mark.parametrize("line", ORDINARY)
def test_what_explains_a_run_is_kept(line: str) -> None:
    assert redactor().text(line.encode()).decode() == line


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Authorization: Basic abcdefgh1\nloading the weights\nof 2 shards", ["the weights\nof 2 shards"]),
        ("token = make(now)[3]\nstarted = Popen(1)\nended = 2", ["\nstarted = Popen(1)\nended = 2"]),
        ("HF_TOKEN=abcdefgh12345\nPATH=/usr/bin\nA=1", ["HF_TOKEN=", "\nPATH=/usr/bin\nA=1"]),
        ("api_key: abcdefgh12345\n2026-01-02 03:04:05 INFO up", ["\n2026-01-02 03:04:05 INFO up"]),
        ("key hf_abcdefghijklmnopqrstuvwx1\n[rank0]: at a.py:3", ["key [hidden]\n[rank0]: at a.py:3"]),
    ],
)
def test_what_stands_in_the_lines_after_a_secret_is_kept(text: str, kept: list[str]) -> None:
    done = redactor().text(text.encode()).decode()
    assert "[hidden]" in done
    assert "abcdefgh" not in done
    assert [part for part in kept if part not in done] == []


NUMBERS = st.one_of(
    st.uuids().map(str),
    st.binary(min_size=20, max_size=20).map(bytes.hex),
    st.binary(min_size=32, max_size=32).map(bytes.hex),
    st.integers(0, 2**63).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(0, 2**48).map(hex),
    st.integers(0, 10**6).map(lambda n: f"/mnt/runs/20260101-000000/checkpoint-{n}/model-00001.safetensors"),
    st.integers(0, 10**4).map(lambda n: f'File "/opt/venv/lib/python3.11/site-packages/vllm/a.py", line {n}'),
    st.integers(0, 10**6).map(
        lambda n: json.dumps({"k": "call", "g": "trainer.dp", "n": n, "size": [n, 4096]})
    ),
)


@settings(max_examples=100, deadline=None)
@given(
    words=st.lists(NUMBERS, min_size=1, max_size=8),
    between=st.sampled_from([" ", "\n", ", ", "=", "\n[rank0]: "]),
)
def test_numbers_hashes_paths_and_lines_of_ledgers_are_kept(words: list[str], between: str) -> None:
    text = between.join(words)
    assert redactor().text(text.encode()).decode() == text


def test_a_pickle_keeps_its_shape_and_gives_no_value_of_a_named_secret_away() -> None:
    secret = "a" + letters(random.Random(1), 20)
    dump = {"api_key": secret, "at": "/home/alice/lockstep/a.py", "frames": ["hf_" + "a1" * 15], "n": 2**40}
    done = redactor().binary(pickle.dumps(dump, protocol=2))
    assert not any(word in done for word in (secret.encode(), b"alice", b"a1a1"))
    assert pickle.loads(done)["n"] == 2**40
    with pytest.raises(NotUnderstood):
        redactor().binary(b"\x7fELF\0\1\2" + secret.encode())
    with pytest.raises(NotUnderstood):
        redactor().binary(pickle.dumps(dump) + secret.encode())


def utf_16(words: str) -> bytes:
    return words.encode("utf-16")


CONTAINERS: dict[str, Callable[[str], bytes]] = {
    "plain": str.encode,
    "utf-16": utf_16,
    "utf-16 without a mark": lambda words: words.encode("utf-16-be"),
    "gzip": lambda words: gzip.compress(words.encode()),
    "two gzip members": lambda words: gzip.compress(b"first\n") + gzip.compress(words.encode()),
    "zstd": lambda words: zstandard.compress(words.encode()),
    "two zstd frames": lambda words: zstandard.compress(b"first\n") + zstandard.compress(words.encode()),
    "gzip of utf-16": lambda words: gzip.compress(utf_16(words)),
    "gzip of gzip": lambda words: gzip.compress(gzip.compress(words.encode())),
    "cut gzip": lambda words: gzip.compress((words + "\n").encode() * 50)[:-12],
    "pickle": lambda words: pickle.dumps([{"frames": [words], "n": 7}], protocol=2),
    "pickle of bytes": lambda words: pickle.dumps({"frames": words.encode()}),
    "pickle behind a pickle": lambda words: pickle.dumps({"n": 1}, protocol=2) + words.encode(),
    "binary": lambda words: b"\x7fELF\0\1\2\0" + words.encode() + bytes(range(256)),
    "latin-1": lambda words: b"caf\xe9 " + words.encode(),
    "tar": lambda words: tarred(words.encode()),
    "bzip2": lambda words: bz2.compress(words.encode()),
    "zip": lambda words: zipped(words),
}
SPLITS: dict[str, Callable[[str, str], str]] = {
    "whole": lambda words, secret: words,
    "colour": lambda words, secret: words.replace(secret, secret[:9] + "\x1b[1;31m" + secret[9:]),
    "control characters": lambda words, secret: words.replace(secret, "\x08".join(secret)),
    "new line": lambda words, secret: words.replace(secret, secret[:9] + "\n" + secret[9:]),
}


def tarred(data: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        member = tarfile.TarInfo("a.log")
        member.size = len(data)
        file.addfile(member, io.BytesIO(data))
    return out.getvalue()


def zipped(words: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("a.log", words)
    return out.getvalue()


def forms_of(secret: str) -> set[bytes]:
    """Return the secret in every form in which it might be passed on."""
    texts = {secret, json.dumps(secret)[1:-1], quote(secret, safe=""), html.escape(secret)}
    texts.add("".join(f"\\u{ord(c):04x}" for c in secret))
    raw = {text.encode(code) for text in texts for code in ("utf-8", "utf-16-le", "utf-16-be")}
    for before in range(3):
        coded = base64.b64encode(b"x" * before + secret.encode())[4:-4]
        raw |= {coded, coded.translate(bytes.maketrans(b"+/", b"-_"))}
    return raw


@pytest.mark.parametrize("container", CONTAINERS)
@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    form=st.sampled_from(sorted(FORMS)),
    split=st.sampled_from(sorted(SPLITS)),
    seed=st.integers(0, 2**32),
    where=st.sampled_from(
        ["logs/a.log", "evidence/rank_0", "ledgers/trainer-rank-0.jsonl", "a.command.json"]
    ),
)
def test_no_secret_is_in_the_archive_wherever_and_however_it_was(
    container: str, kind: str, form: str, split: str, seed: int, where: str
) -> None:
    secret, words = made(random.Random(seed))[kind]
    if form == "plain":
        words = SPLITS[split](words, secret)
    held = CONTAINERS[container](f"begin\n{FORMS[form](words)}\nend of it\n")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "runs" / "20260101-000000" / "control" / where
        place.parent.mkdir(parents=True)
        place.write_bytes(held)
        to = Path(folder) / "to"
        Collector(to, redactor()).run(Path(folder) / "runs", [])
        kept = b"".join(path.read_bytes() for path in to.rglob("*") if path.is_file())
        assert place.name.encode() in kept, "kept, or named as left out"
    joined = re.sub(rb"\x1b\[[\d;]*m|[\n\x08]", b"", kept)
    assert not any(coded in data for coded in forms_of(secret) for data in (kept, joined))
    if container in (
        "plain",
        "utf-16",
        "gzip",
        "two gzip members",
        "zstd",
        "two zstd frames",
        "gzip of utf-16",
    ):
        assert b"begin\n" in kept


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    form=st.sampled_from(["plain", "url", "urlsafe base64"]),
    seed=st.integers(0, 2**32),
)
def test_no_secret_is_in_a_name(kind: str, form: str, seed: int) -> None:
    secret, words = made(random.Random(seed))[kind]
    name = FORMS[form](words).strip().replace("/", "%2F")[-200:]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "runs" / "20260101-000000" / "control" / "logs" / name
        place.mkdir(parents=True)
        (place / "a.log").write_text("x")
        to = Path(folder) / "to"
        Collector(to, redactor()).run(Path(folder) / "runs", [])
        names = "\n".join(map(str, to.rglob("*"))) + (to / "MANIFEST.txt").read_text()
    assert ": 1 bytes" in names
    assert not any(coded in names.encode() for coded in forms_of(secret))


def planted(folder: Path, secret: str) -> None:
    logs = folder / "20260101-000000" / "control" / "logs"
    logs.mkdir(parents=True)
    line = f"a line\nuses {secret} now\n"
    for code in ("utf-16", "utf-16-le", "utf-16-be"):
        (logs / f"{code}.log").write_bytes(line.encode(code))
    (logs / "old.log.gz").write_bytes(gzip.compress(line.encode()))
    (logs / "cut.log.gz").write_bytes(gzip.compress(line.encode() * 200 + os.urandom(50))[:-20])
    (logs / "old.log.zst").write_bytes(zstandard.compress(line.encode()))
    (logs / "twice.gz").write_bytes(gzip.compress(gzip.compress(line.encode())))
    (logs / "core").write_bytes(b"\x7fELF\0\1\2" + line.encode() + os.urandom(200))
    (logs / "nul.log").write_bytes(b"\0" * 100 + line.encode())
    (logs / "latin.log").write_bytes(b"caf\xe9 " + line.encode())
    (logs / f"of {secret}.log").write_text("x")
    (logs / f"{secret}-room").mkdir()
    (logs / f"{secret}-room" / "a.log").write_text("x")
    (logs.parent / "a.command.json").write_text(json.dumps({"argv": ["serve", "--api-key", secret]}))


@pytest.mark.parametrize(
    "secret", ["hf_" + "a1B2" * 9, ENV["SERVICE_TOKEN"].replace("/", "").replace('"', "")]
)
def test_nothing_in_the_archive_nor_in_its_names_holds_a_secret(tmp_path: Path, secret: str) -> None:
    planted(tmp_path / "runs", secret)
    Collector(tmp_path / "to", Redactor({"A_TOKEN": secret}, HOME, HOME)).run(tmp_path / "runs", [])
    found = {str(path.relative_to(tmp_path)): path for path in (tmp_path / "to").rglob("*")}
    assert secret not in " ".join(found)
    for path in found.values():
        if path.is_file():
            data = path.read_bytes()
            assert not any(secret.encode(code) in data for code in ("utf-8", "utf-16-le", "utf-16-be"))
    manifest = (tmp_path / "to" / "MANIFEST.txt").read_text()
    for name in ("utf-16.log", "utf-16-le.log", "utf-16-be.log", "old.log.gz", "old.log.zst", "latin.log"):
        name = name.removesuffix(".gz").removesuffix(".zst")
        assert b"a line\nuses [hidden] now" in (tmp_path / "to/control/logs" / name).read_bytes()
    for name in ("core", "nul.log", "twice.gz"):
        assert f"control/logs/{name}: left out: " in manifest
    assert "control/logs/old.log: " in manifest
    assert ", unpacked" in manifest


def test_no_link_is_followed_and_no_pipe_is_waited_for(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("a.log", "summary.json", "a.command.json"):
        (outside / name).write_text("of another")
    arm = tmp_path / "runs" / "20260101-000000" / "control"
    (arm / "logs").mkdir(parents=True)
    for link in (
        tmp_path / "runs" / "summary.json", tmp_path / "runs" / "junit.xml",
        arm / "a.command.json", arm / "logs" / "a.log",
    ):  # fmt: skip
        link.symlink_to(outside / "a.log")
    for link in (
        arm / "evidence",
        arm / "logs" / "room",
        arm.parent / "linked",
        tmp_path / "runs" / "20270101-000000",
    ):
        link.symlink_to(outside)
    os.mkfifo(arm / "logs" / "pipe")
    (arm / "logs" / "own.log").write_text("own")
    Collector(tmp_path / "to", redactor()).run(tmp_path / "runs", [])
    files = {
        str(path.relative_to(tmp_path / "to")) for path in (tmp_path / "to").rglob("*") if path.is_file()
    }
    assert files == {"MANIFEST.txt", "control/logs/own.log"}


def test_links_are_named_in_the_manifest_and_a_file_with_another_name_is_left_out(tmp_path: Path) -> None:
    logs = tmp_path / "runs" / "20260101-000000" / "control" / "logs"
    logs.mkdir(parents=True)
    (tmp_path / "outside").write_text("of another")
    (logs / "a.log").symlink_to(tmp_path / "outside")
    (logs / "b.log").hardlink_to(tmp_path / "outside")
    Collector(tmp_path / "to", redactor()).run(tmp_path / "runs", [])
    manifest = (tmp_path / "to" / "MANIFEST.txt").read_text()
    assert "control/logs/a.log: left out: a link\n" in manifest
    assert "control/logs/b.log: left out: a hard link" in manifest
    assert not (tmp_path / "to" / "control").exists()


def test_a_folder_that_becomes_a_link_while_it_is_read_leads_nowhere(tmp_path: Path) -> None:
    logs = tmp_path / "runs" / "20260101-000000" / "control" / "logs"
    (logs / "b").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    for folder in (logs, logs / "b", tmp_path / "outside"):
        (folder / "a.log").write_text(f"of {folder.name}")
    seen_files = files(os.fsencode(tmp_path / "runs"))
    assert next(seen_files).place[-1] == b"a.log"
    (logs / "b").rename(logs / "c")
    (logs / "b").symlink_to(tmp_path / "outside")
    assert [(found.place[-1], found.why_not) for found in seen_files] == [(b"b", "a link")]


def test_deep_and_full_folders_end_at_a_limit_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "runs" / "20260101-000000" / "control" / "logs"
    (logs / "/".join("d" * 40)).mkdir(parents=True)
    monkeypatch.setattr(folders, "FILES", 5)
    for number in range(9):
        (logs / f"{number}.log").write_text("x")
    Collector(tmp_path / "to", redactor()).run(tmp_path / "runs", [])
    manifest = (tmp_path / "to" / "MANIFEST.txt").read_text()
    assert "logs: left out: a folder with more than 5 entries: the others" in manifest
    (tmp_path / "deep").mkdir()
    monkeypatch.setattr(folders, "FILES", 5000)
    Collector(tmp_path / "deep", redactor()).run(tmp_path / "runs", [])
    assert f"a folder with more than {folders.DEPTH} above it" in (tmp_path / "deep/MANIFEST.txt").read_text()


def test_two_names_that_become_the_same_stay_two_files(tmp_path: Path) -> None:
    logs = tmp_path / "runs" / "20260101-000000" / "control" / "logs"
    (logs / "a_").mkdir(parents=True)
    (logs / "a_" / "in").write_text("folder")
    (logs / "a\n").write_text("file")
    (logs / "A\t").write_text("large letter")
    Collector(tmp_path / "to", redactor()).run(tmp_path / "runs", [])
    kept = sorted(path.read_text() for path in (tmp_path / "to/control/logs").rglob("*") if path.is_file())
    assert kept == ["file", "folder", "large letter"]


def test_a_secret_of_the_command_is_hidden_wherever_else_it_stands(tmp_path: Path) -> None:
    arm = tmp_path / "runs" / "20260101-000000" / "control"
    (arm / "logs").mkdir(parents=True)
    secret, other = 'pa"ss/wo rd7', "q7w8e9r0t1y2"
    argv = ["vllm", "serve", "--model", "/models/m", f"--password={secret}", "--api-key", "first-of-2", other]
    (arm / "a.command.json").write_text(json.dumps({"argv": argv}))
    (arm / "logs" / "a.log").write_text(f"said {secret} and {other} and {json.dumps(secret)} of /models/m\n")
    Collector(tmp_path / "to", redactor()).run(tmp_path / "runs", [])
    command = json.loads((tmp_path / "to/control/a.command.json").read_text())["argv"]
    assert command == [*argv[:4], "--password=[hidden]", "--api-key", "[hidden]", "[hidden]"]
    log = (tmp_path / "to/control/logs/a.log").read_text()
    assert log == 'said [hidden] and [hidden] and "[hidden]" of /models/m\n'


def test_strange_names_neither_end_it_nor_forge_a_line(tmp_path: Path) -> None:
    logs = tmp_path / "runs" / "20260101-000000" / "control" / "logs"
    logs.mkdir(parents=True)
    for name in (b"bad\xff\xfe.log", b"a\nMANIFEST.txt: 7 bytes", b"\x1b]52;c;x\x07", b"a" * 250):
        (logs / os.fsdecode(name)).write_text("x")
    Collector(tmp_path / "to", redactor()).run(tmp_path / "runs", [])
    lines = (tmp_path / "to" / "MANIFEST.txt").read_text().splitlines()
    assert len(lines) == 4
    assert all(line.startswith("control/logs/") and line.isprintable() for line in lines)


def test_a_huge_file_is_not_read_whole_and_a_small_one_does_not_unpack_to_a_huge_one(tmp_path: Path) -> None:
    logs = tmp_path / "runs" / "20260101-000000" / "control" / "logs"
    logs.mkdir(parents=True)
    with (logs / "sparse.log").open("wb") as file:
        file.write(b"begin\n" + b"x" * 400_000 + b"\n")
        file.truncate(1 << 36)
    (logs / "bomb.gz").write_bytes(gzip.compress(b"a line\n" * (8 << 20)))
    (logs / "bomb.zst").write_bytes(zstandard.compress(b"a line\n" * (8 << 20)))
    Collector(tmp_path / "to", redactor(), 1 << 20, 10 << 20).run(tmp_path / "runs", [])
    manifest = (tmp_path / "to" / "MANIFEST.txt").read_text()
    assert "bomb: 983038 bytes, unpacked; not to its end" in manifest
    assert "bomb.2: 983038 bytes, unpacked; not to its end" in manifest
    assert "sparse.log: left out: 68719476736 bytes that are no text" in manifest
    assert sum(path.stat().st_size for path in (tmp_path / "to").rglob("*") if path.is_file()) < 4 << 20


def test_a_line_that_is_cut_within_a_secret_is_not_passed_on(tmp_path: Path) -> None:
    logs = tmp_path / "runs" / "20260101-000000" / "control" / "logs"
    logs.mkdir(parents=True)
    (logs / "a.log").write_text("x" * 100 + "hf_" + "a1" * 17 + "y" * 5000)
    Collector(tmp_path / "to", redactor(), 160, 1 << 20).run(tmp_path / "runs", [])
    assert b"a1" not in (tmp_path / "to" / "control" / "logs" / "a.log").read_bytes()


@pytest.mark.parametrize(
    "piece",
    ["://", "a:b@", "://a:", '"--api-key" , ', "\\", "%41",
     "-----BEGIN PRIVATE KEY-----", "eyJ", "\x1b]", "a", "A\n", "password=", "--"],
)  # fmt: skip
def test_the_time_grows_with_the_size_and_not_faster(piece: str) -> None:
    def cost(size: int) -> float:
        data = (piece * (size // len(piece))).encode()
        begin = time.process_time()
        redactor().text(data)
        return time.process_time() - begin

    small, large = min(cost(60_000) for _ in range(2)), cost(480_000)
    assert large < 40 * small + 1


def test_a_literal_backslash_zero_is_text() -> None:
    assert contents._text(b"ends with \\0") == b"ends with \\0"
    assert contents._text(b"ab\0\1\2cd") is None


APART = [
    '[{"name": "HF_TOKEN", "value": "%s"}]',
    "- name: HF_TOKEN\n  value: %s\n",
    "os.environ['HF_TOKEN'] = '%s'",
    "setenv HF_TOKEN %s",
    "set -gx HF_TOKEN %s",
    "('HF_TOKEN', '%s')",
    "{b'password': b'%s'}",
    "password: str = '%s'",
    "password: |\n  %s\n",
    "password: >-\n  %s\n",
    "<password>%s</password>",
    '<add key="password" value="%s"/>',
    "token=\r\n%s",
]
PLAIN = [
    "set -x; echo tokens",
    '[{"name": "max_tokens", "value": "40961234"}]',
    "('tokenizer', 'Qwen/Qwen2.5-0.5B')",
    "<tokenizer>Qwen/Qwen2.5-0.5B</tokenizer>",
    "os.environ['TOKENIZERS_PARALLELISM'] = 'false'",
    "name: trainer\nvalue: 81234567",
]


@pytest.mark.parametrize("form", APART)
def test_a_value_at_some_distance_from_its_name_is_found(form: str) -> None:
    told = Redactor({}, Path("/home/u1"), Path("/home/u1/c")).text((form % "q7Zt9Kx2Lm4Vw8Rb").encode())
    assert b"q7Zt9Kx2Lm4Vw8Rb" not in told


@pytest.mark.parametrize("line", PLAIN)
def test_a_value_at_some_distance_from_an_ordinary_name_stays(line: str) -> None:
    assert Redactor({}, Path("/home/u1"), Path("/home/u1/c")).text(line.encode()) == line.encode()
