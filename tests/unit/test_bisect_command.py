"""A bisection with a job that is only pretended: what is run, what is told, what the log and the page say."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from typer.testing import CliRunner

from lockstep.cli import STOP_GIT, app, run_command
from lockstep.experiments.bisect import command, environment, log, releases
from lockstep.experiments.bisect.log import LogError, Try
from lockstep.experiments.bisect.probe import Question, judge
from lockstep.experiments.bisect.table import write_page
from lockstep.run.run_lock import home, mark
from lockstep.stacks.swift import releases as pinned_releases
from lockstep.stacks.swift.compat import PLACES, place

KNOWN = [Version(f"3.{minor}.0") for minor in range(10, 20)]


class Job:
    """Hangs before `cured`; `broken` releases cannot be tested."""

    def __init__(self, cured: str, broken: tuple[str, ...] = ()) -> None:
        self.cured, self.broken, self.tried = Version(cured), broken, []  # type: ignore[var-annotated]

    def __call__(self, question: Any, release: str, out: Path, source: Path | None = None) -> Try:
        self.tried.append(release)
        outcome = "good" if source or Version(release) >= self.cured else "bad"
        if release in self.broken:
            outcome = "untestable"
        return Try(package=question.package, release=release, device=question.device, arm=question.arm,
                   source=source is not None,
                   wanted=dict(question.wanted), outcome=outcome, reason=f"because | {outcome}",
                   moved={"pillow": ("12.0.0", "11.3.0"), "ms-swift": ("3.10.3", release)})  # fmt: skip


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Job:
    job = Job("3.14.0")
    monkeypatch.setattr(command, "probe", lambda *args: job(*args))
    monkeypatch.setattr(releases, "list_releases", lambda name, pre: list(KNOWN))
    monkeypatch.chdir(tmp_path)
    Path("constraints").mkdir()
    for device in pinned_releases.VLLM:
        environment.pins(device).write_text("trl==0.24.0\npeft==0.18.0\n")
    return job


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, " ".join(done.output.split())


def test_the_change_is_found_logged_and_gone_on_from(job: Job) -> None:
    code, said = run("bisect", "--bad", "3.10.0", "--page", "page.md")
    assert code == 0
    assert "3.14.0 is the first that survives; 3.13.0 hangs." in said
    assert "3.10.0" not in job.tried
    assert len(job.tried) <= 6
    before = list(job.tried)
    assert run("bisect", "--bad", "3.10.0", "--good", "3.19.0")[0] == 0
    assert job.tried == before
    page = Path("page.md").read_text()
    assert "| 3.13.0 | **hangs** | because \\| bad | 1 other |  |" in page
    assert "3.14.0 is the first that survives" in page


def test_an_end_that_is_given_counts_more_than_an_earlier_try(job: Job) -> None:
    job.cured, job.broken = Version("3.19.0"), ("3.19.0",)
    assert run("probe-release", "3.19.0")[0] == 125
    code, said = run("bisect", "--bad", "3.10.0", "--good", "3.19.0")
    assert code == 0
    assert "3.19.0 is the first that survives; 3.18.0 hangs." in said


def test_every_release_is_tried_when_asked(job: Job) -> None:
    assert run("bisect", "--every", "--first", "3.12.0", "--last", "3.15.0", "--skip", "3.13.0")[0] == 0
    assert job.tried == ["3.12.0", "3.14.0", "3.15.0"]


def test_the_other_direction(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def broke(*args: Any) -> Try:
        one = job(*args)
        import msgspec

        return msgspec.structs.replace(one, outcome={"good": "bad", "bad": "good"}[one.outcome])

    monkeypatch.setattr(command, "probe", broke)
    code, said = run("bisect", "--good", "3.10.0", "--bad", "3.19.0")
    assert code == 0
    assert "3.14.0 is the first that hangs; 3.13.0 survives." in said


def test_an_untestable_release_is_named_and_not_blamed(job: Job) -> None:
    job.broken = ("3.13.0",)
    code, said = run("bisect", "--bad", "3.10.0")
    assert code == 1
    assert "3.12.0 hangs, and it is not known of 3.13.0." in said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--package", "numpy"], "'numpy' is no pinned package; there are: torch"),
        (["--device", "tpu"], "no such device: 'tpu'"),
        (["--with", "trl"], "--with trl: expected NAME==RELEASE"),
        (["--with", "pfet==0.18.1"], "--with pfet: expected a package of constraints/cpu.txt"),
        (["--with", "trl==0.26.O"], "'0.26.O': expected a release such as"),
        (["--with", "trl==0.26.0", "--with", "trl==0.27.0"], "trl has been asked for already, as 0.26.0"),
        (["--first", "9.9"], "there is no release 9.9"),
        (["--bad", "x"], "'x': expected a release such as"),
    ],
)
def test_wrong_usage(job: Job, words: list[str], told: str) -> None:
    code, said = run("bisect", *words)
    assert code == 2
    assert told in said
    assert not job.tried


def test_the_codes_for_git(job: Job, tmp_path: Path) -> None:
    (tmp_path / "setup.py").touch()
    job.broken = ("3.12.0",)
    assert run("probe-release", "3.14.0")[0] == 0
    assert run("probe-release", "3.13.0")[0] == 1
    assert run("probe-release", "3.12.0")[0] == 125
    assert [run("probe-release", "--fixed", f"3.{minor}.0")[0] for minor in (14, 13, 12)] == [1, 0, 125]
    assert run("probe-release", "--source", str(tmp_path))[0] == 0
    assert run("probe-release", "--source", str(tmp_path / "none"))[0] == 128
    assert run("probe-release")[0] == 128
    tried = log.read(tmp_path / ".lockstep/bisect/log.jsonl")
    assert [one.release for one in tried] == ["3.14.0", "3.13.0", "3.12.0", tmp_path.name]


def test_a_torn_log_is_read_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    one = Try(package="p", release="1", device="cpu", arm="a", outcome="good", reason="r")
    path = tmp_path / "log.jsonl"
    log.append(path, one)
    with path.open("a") as torn:
        torn.write('{"package": "p", "rel')
    assert log.read(path) == [one]
    path.write_text('{"package": 3}\n')
    with pytest.raises(LogError, match=r"log\.jsonl:1: expected a release that was tried"):
        log.read(path)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--nonsense"], "No such option"),
        (["--source"], "requires an argument"),
        (["3.12.0", "3.13.0"], "unexpected extra argument"),
        ([], "give a release or --source"),
        (["3.12.0", "--arm", "nonsense"], "no arm is named nonsense; there are: control, without the fix"),
        (["3.12.0", "--with", "ms-swift==4.2.0"], "expected a further package"),
    ],
)
def test_wrong_usage_of_a_probe_stops_git_bisect_before_anything_is_built(
    job: Job, capsys: pytest.CaptureFixture[str], words: list[str], told: str
) -> None:
    code = run_command(["probe-release", *words], STOP_GIT)
    said = capsys.readouterr().err
    assert code == 128
    assert told in said
    assert not job.tried


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "expected --good, --bad or --first"),
        (["--good", "3.11.0", "--bad", "3.11"], "--good and --bad are both"),
        (["--bad", "3.10.0", "--arm", "nonsense"], "no arm is named nonsense"),
        (["--bad", "9.9.9"], "there is no release 9.9.9"),
    ],
)
def test_a_wrong_range_or_arm_is_told_before_anything_is_built(job: Job, words: list[str], told: str) -> None:
    code, said = run("bisect", *words)
    assert (code, told in said) == (2, True), said
    assert not job.tried


# -- what a run's answer means

STUCK = {"verdict": "stuck", "group": "rollout.dp", "sentence": "rank 0 waits", "fault_happened": True}
STEP = {"verdict": "in step", "group": "", "sentence": "all the same", "fault_happened": True, "failure": ""}


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        (STUCK, "bad"),
        ({**STUCK, "group": "rollout.dp.cpu"}, "bad"),
        ({**STUCK, "group": "trainer.world"}, "untestable"),
        (STEP, "good"),
        ({**STEP, "fault_happened": False}, "untestable"),
        ({**STEP, "failure": "the trainer ended with status 1"}, "untestable"),
        ({**STEP, "verdict": "incomplete"}, "untestable"),
        ({**STEP, "verdict": "stalled"}, "untestable"),
        ({"failure": "cannot be installed"}, "untestable"),
    ],
)
def test_only_the_expected_hang_is_bad_and_only_in_step_is_good(given: dict[str, Any], outcome: str) -> None:
    assert judge(Question("ms-swift").bisection, given)[0] == outcome


def test_a_refusal_is_told_from_a_crash_and_quoted(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "rollout-worker-0.log"
    log.parent.mkdir()
    failed = {"failure": "the rollout server ended with status 1", "folder": str(tmp_path)}
    log.write_text("ValueError: something else\n")
    assert judge(Question("ms-swift").bisection, failed)[0] == "untestable"
    log.write_text(
        "E ValueError: Offline data parallel mode is not supported/useful for dense models.\nmore\n"
    )
    assert judge(Question("ms-swift").bisection, failed) == (
        "refuses",
        "Offline data parallel mode is not supported/useful for dense models.",
    )


def test_a_refusal_that_pydantic_wraps_is_one_too(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "rollout-server-0.log"
    log.parent.mkdir()
    log.write_text("  Value error, Offline data parallel mode is not supported for dense models. [type=x]\n")
    failed = {"failure": "ValidationError: 1 validation error for ParallelConfig", "folder": str(tmp_path)}
    assert judge(Question("ms-swift").bisection, failed) == (
        "refuses",
        "Offline data parallel mode is not supported for dense models.",
    )


# -- the environment's short list and overrides

SHORT = "# The stack\ntorch==2.8.0\ntorchvision==0.23.0\nms-swift==3.10.3\nmsgspec\n"


def test_one_pin_is_changed_and_the_others_are_kept_or_preferred() -> None:
    exact = environment.short_list(SHORT, {"ms-swift": "3.12.0"}, None, exact=True)
    assert exact == SHORT.replace("3.10.3", "3.12.0")
    loose = environment.short_list(SHORT, {"ms-swift": "3.12.0"}, None, exact=False)
    assert loose.splitlines()[1:] == ["torch", "torchvision", "ms-swift==3.12.0", "msgspec"]
    source = environment.short_list(SHORT, {}, ("ms-swift", Path("/x")), exact=True)
    assert "ms-swift @ file:///x" in source


def test_torchs_kin_follows_the_torch_that_a_release_asks_for() -> None:
    given = '# why\ntorch==2.8.0\ntorchvision==0.23.0\ntriton==3.4.0\ntorchaudio; sys_platform == "never"\n'
    assert environment.overrides(given, {}) == given
    moved = environment.overrides(given, {"torch": "2.9.1", "torchvision": "0.24.1", "triton": "3.5.1"})
    assert moved.splitlines()[1:4] == ["torch==2.9.1", "torchvision==0.24.1", "triton==3.5.1"]
    assert moved.endswith('torchaudio; sys_platform == "never"\n')


# -- where the releases have what is wrapped


def test_the_places_of_the_pinned_release_and_of_later_ones() -> None:
    assert place("client", "3.10.3") == place("client", "3.12.6") == "swift.trainers.rlhf_trainer.vllm_client"
    assert place("client", "4.0.0.dev0") == place("client", "4.6.0") == "swift.rlhf_trainers.vllm_client"
    assert place("prefill", "0.10.2.post2").endswith("_v1")
    assert place("prefill", "0.11.0.post2+cpu").endswith("._set_default_args")
    assert place("prefill", "0.14.1").endswith("_caching_args")
    assert all(since == tuple(sorted(since)) for _, since in PLACES.values())


def test_a_checkout_is_called_what_git_calls_it(job: Job, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "setup.py").touch()
    assert run("probe-release", "--source", str(tree)) == (
        0,
        f"ms-swift {tree.name}: good: because | good (moved: 1 other)",
    )
    git = ["git", "-C", str(tree), "-c", "user.name=n", "-c", "user.email=e@x"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "m"], check=True)
    subprocess.run([*git, "tag", "v4.2.0"], check=True)
    assert (
        run("probe-release", "--source", str(tree))[1]
        == "ms-swift v4.2.0: good: because | good (moved: 1 other)"
    )


def test_commits_have_a_table_of_their_own_in_the_order_of_trying(tmp_path: Path) -> None:
    def tried(release: str, outcome: str, source: bool) -> Try:
        return Try(package="ms-swift", release=release, device="cpu", arm="without the fix",
                   outcome=outcome, reason="r", source=source)  # fmt: skip

    commits = [tried("v4.2.0-19-gabc", "good", True), tried("v4.2.0-9-gdef", "bad", True)]
    write_page([tried("4.2.1", "good", False), *commits], tmp_path / "page.md", 3)
    page = (tmp_path / "page.md").read_text()
    assert "1 release tried" in page
    _, _, table = page.partition("## ms-swift, by commit\n")
    assert "2 commits tried on a CPU (`lockstep probe-release --source CHECKOUT --package ms-swift`)" in table
    assert table.index("| v4.2.0-19-gabc | survives |") < table.index("| v4.2.0-9-gdef | **hangs** |")


def test_commits_are_no_releases_of_a_bisection(job: Job, tmp_path: Path) -> None:
    (tmp_path / "setup.py").touch()
    commit = Try(package="ms-swift", release="3.14.0", device="cpu", arm="without the fix", outcome="bad",
                 reason="r", source=True)  # fmt: skip
    log.append(tmp_path / ".lockstep/bisect/log.jsonl", commit)
    assert "3.14.0 is the first that survives" in run("bisect", "--bad", "3.10.0")[1]


def test_a_checkout_of_vllm_is_not_built_for_the_cpu(job: Job, tmp_path: Path) -> None:
    (tmp_path / "setup.py").touch()
    code, said = run("probe-release", "--package", "vllm", "--source", str(tmp_path))
    assert code == 128
    assert "a checkout of vllm is built for GPUs" in said


def test_the_page_has_the_ends_that_were_given(job: Job) -> None:
    code, _ = run("bisect", "--bad", "3.13.0", "--good", "3.14.0", "--page", "page.md")
    assert code == 0
    assert job.tried == []
    page = Path("page.md").read_text()
    assert "3.14.0 is the first that survives; 3.13.0 hangs." in page
    assert "| 3.14.0 | survives | given, not run |" in page
    assert log.read(Path(".lockstep/bisect/log.jsonl")) == []


def test_a_given_end_that_was_otherwise_when_it_was_tried_is_said(job: Job) -> None:
    assert run("probe-release", "3.13.0")[0] == 1
    said = run("bisect", "--good", "3.13.0", "--bad", "3.10.0")[1]
    assert "ms-swift 3.13.0: bad: because | bad (moved: 1 other), when it was tried; given is good" in said


def test_another_arm_is_named_with_its_command(tmp_path: Path) -> None:
    one = Try(
        package="ms-swift", release="4.2.0", device="cuda", arm="with the fix", outcome="good", reason="r"
    )
    write_page([one], tmp_path / "page.md", 3)
    page = (tmp_path / "page.md").read_text()
    assert "## ms-swift: with the fix\n" in page
    assert "(`lockstep bisect --package ms-swift --arm 'with the fix' --device cuda`)" in page


def test_a_package_that_is_only_resolved_may_be_asked_for(job: Job) -> None:
    assert run("probe-release", "3.14.0", "--with", "PEFT==0.18.1")[0] == 0


@pytest.mark.parametrize("device", pinned_releases.VLLM)
def test_every_device_has_its_files(device: str) -> None:
    root = Path(__file__).parents[2]
    pinned = environment.read_lock(root / environment.pins(device))
    assert {name: pinned[name].partition("+")[0] for name in pinned_releases.PINNED} == pinned_releases.PINNED
    assert (root / environment.pins(device)).with_suffix(".in").exists()


def test_it_wants_a_checkout_of_its_own(job: Job) -> None:
    Path("constraints", "cpu.txt").unlink()
    code, said = run("probe-release", "3.14.0")
    assert code == 128
    assert "run it in a checkout of Lockstep" in said


@pytest.mark.parametrize("words", [["bisect", "--bad", "3.10.0"], ["probe-release", "3.12.0"]])
def test_what_is_somebody_elses_is_refused_before_anything_is_tried(job: Job, words: list[str]) -> None:
    for name in ("log.jsonl", "runs/summary.json"):
        theirs = Path(name.replace("/", "-"), name)
        theirs.parent.mkdir(parents=True)
        theirs.write_text('{"mine": 1}\n{"mine": 2}\n')
        code, said = run(*words, "--out", name.replace("/", "-"))
        assert code == (2 if words[0] == "bisect" else 128)
        assert theirs.name in said
        assert theirs.read_text() == '{"mine": 1}\n{"mine": 2}\n'
    assert job.tried == []


@pytest.mark.parametrize("words", [["bisect", "--bad", "3.10.0"], ["probe-release", "3.12.0"]])
def test_two_at_once_do_not_share_a_folder(job: Job, words: list[str]) -> None:
    """Not even between two releases of the first one."""
    Path("out").mkdir()
    with home(Path("out")):
        code, said = run(*words, "--out", "out")
    assert (code, job.tried) == (2 if words[0] == "bisect" else 128, [])
    assert "another lockstep run" in said


def test_environments_of_somebody_else_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--out` may be a folder in which a user has environments of their own."""
    for name in ("mine", "other", "third", "fourth"):
        (tmp_path / name / "bin").mkdir(parents=True)
    ours = [mark(tmp_path / f"cpu-{n}") for n in range(5)]
    for n, made in enumerate(ours):
        os.utime(made, (n, n))
    environment._forget(tmp_path, 2, tmp_path / "new")
    assert {p.name for p in tmp_path.iterdir()} == {"mine", "other", "third", "fourth", "cpu-3", "cpu-4"}
