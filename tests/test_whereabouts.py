"""Where pages are, as the spool itself tells it."""

import os
from pathlib import Path

import pytest
from conftest import new_key, number

from pagermcp import files
from pagermcp.spool import Spool
from pagermcp.spool.whereabouts import counts


def test_counting_a_long_archive_again_looks_only_at_days_that_have_changed(tmp_path: Path) -> None:
    spool, box = Spool(str(tmp_path)), number(new_key())
    for day, id in (("2026-01-01", 1), ("2026-01-02", 2)):
        folder = tmp_path / "archive" / day / box
        folder.mkdir(parents=True)
        for n in range(3):
            (folder / f"{id * 100 + n:016d}.json").write_text("")
        (folder / "no page").write_text("")
        os.utime(folder, (id, id))
    looked: list[str] = []
    names = files.names

    def noted(path: str) -> list[str]:
        looked.append(path)
        return names(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "names", noted)
        assert counts(spool, box)["archived"] == 6
        looked.clear()
        (folder / "0000000000000900.expired.json").write_text("")  # and now its mtime is another one
        assert counts(spool, box)["archived"] == 7
        (folder / "0000000000000901.json").write_text("")  # maybe within the same tick of the clock
        assert counts(spool, box)["archived"] == 8
    assert [path for path in looked if path.startswith(f"{tmp_path}/archive/")] == [str(folder)] * 2
