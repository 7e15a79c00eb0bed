"""Where pages are, as the spool itself tells it."""

import os
from pathlib import Path

import pytest
from conftest import new_key, number

from pagermcp import files
from pagermcp.spool import Spool, whereabouts
from pagermcp.spool.whereabouts import ANY, counts, listing


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


def test_the_latest_pages_of_a_long_archive_are_listed_without_parsing_the_names_of_all(tmp_path: Path) -> None:
    spool, box = Spool(str(tmp_path)), number(new_key())
    for day in ("2026-01-01", "2026-01-02"):
        folder = tmp_path / "archive" / day / box
        folder.mkdir(parents=True)
        for n in range(int(day[-1]), 1001, 2):
            (folder / f"{n:016d}.json").write_text("")
        (folder / "zzz").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        parsed: list[str] = []
        ended = whereabouts._ended
        patch.setattr(whereabouts, "_ended", lambda file: parsed.append(file) or ended(file))
        assert [int(place.name.id) for place in listing(spool, box, ANY, 5)] == [996, 997, 998, 999, 1000]
        middle = listing(spool, box, ANY, 3, before=f"{500:016d}")
        assert [int(place.name.id) for place in middle] == [497, 498, 499]
        middle = listing(spool, box, ANY, 3, since=f"{500:016d}")
        assert [int(place.name.id) for place in middle] == [501, 502, 503]
        assert len(parsed) < 50
    assert len(listing(spool, box, ANY)) == 1000


def test_a_page_that_is_given_back_while_all_are_listed_is_not_left_out(tmp_path: Path) -> None:
    spool, box = Spool(str(tmp_path)), number(new_key())
    new, leased = tmp_path / "new" / box, tmp_path / "leased" / box
    new.mkdir(parents=True)
    leased.mkdir(parents=True)
    (leased / f"{1:016d}.json").write_text("")
    names = files.names

    def give_back(path: str) -> list[str]:
        found = names(path)
        if path == str(new) and not found:
            os.rename(leased / f"{1:016d}.json", new / f"{1:016d}.2.json")
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "names", give_back)
        assert [(place.name.handle, place.state) for place in listing(spool, box, ANY)] == [(f"{1:016d}.2", "waiting")]
