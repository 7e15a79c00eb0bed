"""The systemd unit and the Dockerfile, as far as they can be checked without either."""

import re
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


def test_the_container_is_not_root_serves_every_network_and_keeps_pages_in_its_volume() -> None:
    text = (REPOSITORY / "Dockerfile").read_text()
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    assert re.search(r"^VOLUME /data$", text, re.MULTILINE)
    assert "MODE=server HOST=0.0.0.0 PORT=8080 DATA_DIR=/data" in text
    assert 'ENTRYPOINT ["pagermcp"]' in text
