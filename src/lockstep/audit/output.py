"""An audit for programs and for people."""

from __future__ import annotations

from typing import Any

from lockstep.audit.model import Finding, Job, Severity
from lockstep.audit.process_facts import sheet
from lockstep.report.safe_text import one_line

SCHEMA = "lockstep.audit/1"
_STYLES = {
    Severity.HAZARD: "bold red",
    Severity.WARNING: "yellow",
    Severity.NOTE: "cyan",
    Severity.OK: "green",
}


def to_json(job: Job, findings: list[Finding]) -> dict[str, Any]:
    """The whole audit as JSON types; docs/audit.md describes it. Fields are only ever added under one schema
    number."""
    return {
        "schema": SCHEMA,
        "hazard": has_hazard(findings),
        "scripts": list(job.layouts),
        "releases": dict(sorted(job.versions.items())),
        "findings": [
            {
                "id": finding.id,
                "severity": finding.severity.value,
                "file": finding.place.path,
                "line": finding.place.line,
                "title": finding.title,
                "reason": finding.reason,
                "sources": [{"release": source.release, "file": source.file} for source in finding.sources],
                "advice": finding.advice,
            }
            for finding in findings
        ],
        "processes": [sheet(process, job) for process in job.processes],
    }


def has_hazard(findings: list[Finding]) -> bool:
    return any(finding.severity is Severity.HAZARD for finding in findings)


def show(job: Job, findings: list[Finding]) -> None:
    """Prints the audit for people: conclusion, findings, the processes side by side."""
    from rich.text import Text

    from lockstep.report.console import Console

    console = Console(soft_wrap=True)
    hazards = [finding for finding in findings if finding.severity is Severity.HAZARD]
    if hazards:
        console.print(
            Text(
                f"{len(hazards)} hazard{'s' if len(hazards) > 1 else ''}: {hazards[0].title}",
                style="bold red",
            )
        )
    else:
        console.print(Text(_nothing_found(findings), style="bold green"))
    for finding in findings:
        console.print()
        head = Text(f"{finding.severity.value:8}", style=_STYLES[finding.severity])
        console.print(head.append(f"{finding.place}  ", style="dim").append(finding.title, style="bold"))
        console.print(Text(f"        {finding.reason}"))
        if quoted := _quote(job, finding):
            console.print(Text(f"        > {quoted}", style="dim"))
        if finding.advice:
            console.print(Text(f"        To do: {finding.advice}"))
        if finding.sources:
            console.print(
                Text(f"        Read in: {', '.join(str(source) for source in finding.sources)}", style="dim")
            )
    console.print()
    _table(job, console)


_UNREAD = ("program-not-read", "calls-script", "sourced", "not-understood")
_NAMED = 3


def _nothing_found(findings: list[Finding]) -> str:
    """The conclusion where there is no hazard: it reaches as far as the audit has read."""
    unread = [finding for finding in findings if finding.id in _UNREAD]
    if not unread:
        return "no hazard found"
    named = "; ".join(f"{finding.title} ({finding.place})" for finding in unread[:_NAMED])
    more = f"; and {len(unread) - _NAMED} more" if len(unread) > _NAMED else ""
    return f"no hazard found in what was read, but {named}{more}"


def _quote(job: Job, finding: Finding) -> str:
    if finding.severity in (Severity.OK, Severity.NOTE):
        return ""
    layout = job.layouts.get(finding.place.path)
    rows = [row.text for row in layout.rows if row.line == finding.place.line] if layout else []
    return rows[0].strip()[:160] if rows else ""


def _table(job: Job, console: Any) -> None:
    from rich.table import Table
    from rich.text import Text

    sheets = [sheet(process, job) for process in job.processes]
    table = Table("")
    for s in sheets:
        table.add_column(
            Text("\n".join(map(one_line, (s["side"], s["program"], f"{s['file']}:{s['line']}")))),
            overflow="fold",
        )
    for name, cells in _rows(sheets):
        if any(cells):
            table.add_row(one_line(name), *(Text(one_line(cell)) for cell in cells))
    console.print(table, soft_wrap=False)


def _rows(sheets: list[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    def value(entry: Any) -> str:
        return "" if entry is None else str(entry["value"])[:60]

    def plain(entry: Any) -> str:
        return "" if entry is None else str(entry)

    def used(s: dict[str, Any], name: str) -> str:
        return f"{value(s[name])}{'' if s['uses_master'] else ' (not used)'}" if s[name] else ""

    rows = [
        ("MASTER_ADDR", [used(s, "master_addr") for s in sheets]),
        ("MASTER_PORT", [used(s, "master_port") for s in sheets]),
    ]
    names = sorted({name for s in sheets for name in s["environment"]} - {"MASTER_ADDR", "MASTER_PORT"})
    rows += [(name, [value(s["environment"].get(name)) for s in sheets]) for name in names]
    rows += [
        ("GPUs used", [",".join(s["gpus"]["used"] or ()) for s in sheets]),
        ("ranks", [plain(s["world_size"]) for s in sheets]),
        ("engine", [plain(s["engine"]) for s in sheets]),
        ("tensor parallel size", [plain(s["tensor_parallel_size"]) for s in sheets]),
        ("data parallel size", [plain(s["data_parallel_size"]) for s in sheets]),
        ("serves on port", [value(s["ports"]["serves_on"]) for s in sheets]),
        ("connects to port", [", ".join(value(port) for port in s["ports"]["connects_to"]) for s in sheets]),
        ("weight-sync port", [", ".join(map(str, s["ports"]["weight_sync"])) for s in sheets]),
        ("waits for server, s", [value(s["timeouts"]["vllm_server_timeout"]) for s in sheets]),
        ("collective timeout, s", [value(s["timeouts"]["ddp_timeout"]) for s in sheets]),
        ("save every", [plain(s["save_every"]) for s in sheets]),
        ("eval every", [plain(s["eval_every"]) for s in sheets]),
    ]
    counts = (
        ("completions per generation", "completions_per_generation"),
        ("  of one prompt", "num_generations"),
        ("  per server", "per_server"),
        ("  per data-parallel rank", "per_dp_rank"),
    )
    rows += [(title, [plain((s["batch"] or {}).get(name)) for s in sheets]) for title, name in counts]
    memory = dict.fromkeys(name for s in sheets for name in s["memory"])
    rows += [(name, [s["memory"].get(name, "")[:60] for s in sheets]) for name in memory]
    return rows
