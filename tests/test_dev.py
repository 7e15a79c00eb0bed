"""`./dev` finds a Python, makes .venv once, says what is missing. Python has a stand-in: a real .venv takes long."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import REPOSITORY, clean_environment, require

PYTHON = """#!/bin/sh
case "$*" in
*version_info*sys.exit* | *sys.exit*version_info*) exit {too_old} ;;
*ensurepip*) exit {no_ensurepip} ;;
*print*) echo 3.11 ;;
--version) echo "Python 3.11.2" ;;
"-m venv --clear .venv")
    rm -rf .venv
    mkdir -p .venv/bin
    cp "$0" .venv/bin/python
    printf '#!/bin/sh\\necho "pagermcp $*; PORT=$PORT; as $PAGERMCP_CALLED_AS"\\n' >.venv/bin/pagermcp
    chmod +x .venv/bin/pagermcp
    echo made >>made.log
    ;;
"-m pip "*) echo "$*" >>pip.log; exit {pip_fails} ;;
"-m pytest "* | "-m bench "*) echo "$*" ;;
*) echo "unexpected: $*" >&2; exit 99 ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with ./dev and pyproject.toml, and a bin/ that will hold the only Python."""
    folder = tmp_path / "check out"  # a space, as in many people's folders
    (folder / "bin").mkdir(parents=True)
    for name in ("dev", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, folder)
    for tool in ("sh", "cat", "cksum", "dirname", "rm", "mkdir", "cp", "chmod"):
        (folder / "bin" / tool).symlink_to(require(tool, "coreutils"))
    return folder


def put_python(
    checkout: Path, name: str = "python3", too_old: int = 0, no_ensurepip: int = 0, pip_fails: int = 0
) -> None:
    path = checkout / "bin" / name
    path.write_text(PYTHON.format(too_old=too_old, no_ensurepip=no_ensurepip, pip_fails=pip_fails))
    path.chmod(0o755)


def dev(checkout: Path, *arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    environment = clean_environment(PATH=checkout / "bin", **settings)
    environment.pop("PYTHON", None)
    return subprocess.run(
        [checkout / "dev", *arguments], env=environment, cwd="/", capture_output=True, text=True, timeout=60
    )


def made(checkout: Path) -> int:
    log = checkout / "made.log"
    return log.read_text().count("made") if log.exists() else 0


def test_serve_makes_the_environment_once_and_runs_the_relay(checkout: Path) -> None:
    put_python(checkout)
    for _ in range(2):
        served = dev(checkout, "serve", "--host", "::1", PORT=8081)
        assert (served.returncode, served.stdout) == (0, "pagermcp serve --host ::1; PORT=8081; as ./dev serve\n")
    assert made(checkout) == 1
    assert "--editable .[mcp]\n" in (checkout / "pip.log").read_text()


def test_a_changed_pyproject_makes_it_again(checkout: Path) -> None:
    put_python(checkout)
    dev(checkout, "serve")
    with (checkout / "pyproject.toml").open("a") as file:
        file.write("\n# changed\n")
    dev(checkout, "serve")
    assert made(checkout) == 2


def test_a_moved_checkout_makes_it_again(checkout: Path) -> None:
    put_python(checkout)
    dev(checkout, "serve")
    moved = checkout.rename(checkout.parent / "moved")
    dev(moved, "serve")
    assert made(moved) == 2


def test_a_broken_off_installation_does_not_count(checkout: Path) -> None:
    put_python(checkout, pip_fails=1)
    assert dev(checkout, "serve").returncode != 0
    put_python(checkout)
    assert dev(checkout, "serve").returncode == 0
    assert made(checkout) == 2


def test_an_environment_whose_python_is_gone_does_not_count(checkout: Path) -> None:
    put_python(checkout)
    dev(checkout, "serve")
    (checkout / ".venv" / "bin" / "python").unlink()
    assert dev(checkout, "serve").returncode == 0
    assert made(checkout) == 2


def test_the_tests_environment_serves_as_well_but_not_the_other_way_round(checkout: Path) -> None:
    put_python(checkout)
    dev(checkout, "serve")
    assert dev(checkout, "test", "-k", "a b").stdout == "-m pytest -n 4 --dist loadfile --no-loadscope-reorder -k a b\n"
    assert "--editable .[dev]\n" in (checkout / "pip.log").read_text()
    dev(checkout, "serve")
    assert (checkout / "pip.log").read_text().count("--editable") == 2
    assert made(checkout) == 1  # a relay that runs from it is not disturbed


def test_the_benchs_environment_serves_as_well_but_not_for_tests(checkout: Path) -> None:
    put_python(checkout)
    assert dev(checkout, "bench", "--quick").stdout == "-m bench --quick\n"
    dev(checkout, "serve")
    assert (checkout / "pip.log").read_text().count("--editable") == 1
    dev(checkout, "test", "-x")
    dev(checkout, "bench", "--quick")
    assert [line.split()[-1] for line in (checkout / "pip.log").read_text().splitlines()] == [".[bench]", ".[dev]"]
    assert made(checkout) == 1


def test_a_newer_python_under_another_name_is_found(checkout: Path) -> None:
    put_python(checkout, "python3", too_old=1)
    put_python(checkout, "python3.12")
    assert dev(checkout, "serve").returncode == 0


@pytest.mark.parametrize("old", [True, False])
def test_without_a_fitting_python_it_says_so(checkout: Path, old: bool) -> None:
    if old:
        put_python(checkout, too_old=1)
    failed = dev(checkout, "serve")
    assert failed.returncode == 1
    assert failed.stderr.startswith("Python 3.11 or newer is needed and was not found.")
    assert not (checkout / ".venv").exists()


def test_without_ensurepip_it_prints_the_exact_line_to_install_it(checkout: Path) -> None:
    put_python(checkout, no_ensurepip=1)
    failed = dev(checkout, "serve")
    assert failed.returncode == 1
    assert failed.stderr.endswith("sudo apt-get install -y python3.11-venv\n")


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["srve"], 2), (["--help"], 0), (["help"], 0)])
def test_other_words_show_what_there_is(checkout: Path, arguments: list[str], code: int) -> None:
    shown = dev(checkout, *arguments)
    assert shown.returncode == code
    for word in ("serve", "test", "lint", "bench"):
        assert f"./dev {word}" in shown.stdout + shown.stderr


def test_the_scripts_are_posix_sh() -> None:
    for script in ("dev", ".ci/run"):
        assert (REPOSITORY / script).read_text().startswith("#!/bin/sh\n")
        assert os.access(REPOSITORY / script, os.X_OK)
        subprocess.run([require("dash", "dash"), "-n", REPOSITORY / script], check=True)
