"""The systemd unit, as far as it can be checked without a running systemd."""

import subprocess
from pathlib import Path

from conftest import REPOSITORY, require


def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path) -> None:
    analyze = require("systemd-analyze", "systemd")
    program = tmp_path / "pagermcp"  # verify wants the program to be there
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = (REPOSITORY / "systemd" / "pagermcp.service").read_text()
    assert "ExecStart=/opt/pagermcp/bin/pagermcp serve\n" in text
    unit = tmp_path / "pagermcp.service"
    unit.write_text(text.replace("/opt/pagermcp/bin/pagermcp", str(program)))
    checked = subprocess.run([analyze, "verify", unit], capture_output=True, text=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
