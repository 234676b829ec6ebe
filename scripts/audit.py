"""Looks for known flaws in the packages of constraints.txt, with pip-audit: `make audit`.

Exits with 1 where a flaw is known. What could not be looked up is no success: it prints a line that begins with
"not audited:" and exits with 0, because a machine without a way to an index, or behind a mirror that knows no
advisories, must still be able to check the rest.

pip-audit lives in an environment of its own, build/tools, installed with hashes.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
LOCKED: Final = ROOT / "constraints.txt"
TOOLS: Final = ROOT / "build" / "tools"
TOOLS_LOCKED: Final = ROOT / "deploy" / "images" / "requirements-tools.txt"
INSTALL_TIMEOUT_S: Final = 300
AUDIT_TIMEOUT_S: Final = 300
NAMED_MAX: Final = 5
"""Packages named in a line; of more their number is told."""


def verdict(report: dict[str, Any]) -> tuple[int, list[str]]:
    """The exit code, and what to print, for the report that pip-audit wrote."""
    packages = report["dependencies"]
    skipped = sorted(package["name"] for package in packages if "skip_reason" in package)
    flawed = [(package, flaw) for package in packages for flaw in package.get("vulns", ())]
    lines = [
        f"{package['name']} {package['version']} has the flaw {flaw['id']}; "
        + (f"fixed in {', '.join(flaw['fix_versions'])}: run make lock" if flaw["fix_versions"] else "no fix is known")
        for package, flaw in flawed
    ]
    if skipped:
        names = ", ".join(skipped[:NAMED_MAX]) + (", …" if len(skipped) > NAMED_MAX else "")
        lines.append(f"not audited: the advisory service does not know {len(skipped)} of {len(packages)}: {names}")
    looked_up = len(packages) - len(skipped)
    if looked_up and not flawed:
        lines.append(f"{looked_up} packages audited, no known flaw")
    return (1 if flawed else 0), lines


def last_line(text: str) -> str:
    """What a program said last, which is why it ended."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")


def installed_tools() -> str | None:
    """Have pip-audit in its environment; the reason where that can't be."""
    stamp = TOOLS / "locked"
    wanted = hashlib.sha256(TOOLS_LOCKED.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted:
        return None
    venv.create(TOOLS, with_pip=True, clear=True)
    pip = [str(TOOLS / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [*pip, "--require-hashes", "-r", str(TOOLS_LOCKED)],
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"pip did not install pip-audit within {INSTALL_TIMEOUT_S} s"
    if done.returncode:
        return f"pip can't install pip-audit: {last_line(done.stderr)}"
    stamp.write_text(wanted)
    return None


def audited() -> tuple[int, list[str]]:
    """Ask, and judge the answer."""
    if (problem := installed_tools()) is not None:
        return 0, [f"not audited: {problem}"]
    report = TOOLS / "audit.json"
    report.unlink(missing_ok=True)
    command = [str(TOOLS / "bin/pip-audit"), "--disable-pip", "--require-hashes", "-r", str(LOCKED)]
    try:
        done = subprocess.run(
            [*command, "--progress-spinner", "off", "--format", "json", "--output", str(report)],
            capture_output=True,
            text=True,
            timeout=AUDIT_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return 0, [f"not audited: the advisory service did not answer within {AUDIT_TIMEOUT_S} s"]
    # It exits with 1 both for a flaw and for a service that can't be reached; only the former leaves a report.
    if not report.exists() or not report.stat().st_size:
        return 0, [f"not audited: {last_line(done.stderr)}"]
    return verdict(json.loads(report.read_text()))


if __name__ == "__main__":
    code, lines = audited()
    sys.stdout.write("".join(f"audit: {line}\n" for line in lines))
    sys.exit(code)
