"""The Dockerfile, as far as it can be checked without Docker."""

import re

from conftest import REPOSITORY


def test_the_container_is_not_root_serves_every_network_and_keeps_pages_in_its_volume() -> None:
    text = (REPOSITORY / "Dockerfile").read_text()
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    assert re.search(r"^VOLUME /data$", text, re.MULTILINE)
    assert "MODE=server HOST=0.0.0.0 PORT=8080 DATA_DIR=/data" in text
    assert 'ENTRYPOINT ["pagermcp"]' in text
