"""Live relays for tests: a real process, a free port, a temporary spool, always stopped by its own process id."""

import concurrent.futures
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
import requests
from filelock import FileLock

from pagermcp.address import number_of
from pagermcp.spool import Spool

pytest_plugins = ["browsing"]

REPOSITORY = Path(__file__).parent.parent
NOBODY = 65534
RELAY_IMPORTS = "import encodings.idna, pagermcp.server; from pagermcp.cli import main"  # before it may read nothing
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else, or give files away")

_LONG = (  # a minute or so, though some have few tests
    "test_bench",
    "test_kill",
    "test_long_waits",
    "test_proxies",
    "test_slow_clients",
    "test_soak",
    "test_systemd",
    "test_workers",
)
_SETTINGS = (
    "MODE",
    "HOST",
    "PORT",
    "DATA_DIR",
    "MAX_MESSAGES_PER_MAILBOX",
    "MAX_MESSAGE_BYTES",
    "WAIT_TIMEOUT_SECONDS",
    "PROJECT_DIR",
    "NO_COLOR",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", type=float, default=8, help="seconds that the soak lasts (default 8)")
    parser.addoption("--kills", type=int, default=50, help="how often the relay is killed under load (default 50)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first: what begins late is waited for by all."""
    items.sort(key=lambda item: item.path.stem not in _LONG)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A file name that is no UTF-8 may be in the log, and xdist could not send the report of that test."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


def new_key() -> str:
    return str(uuid.uuid4())


def number(key: str) -> str:
    return number_of(uuid.UUID(key))


def clean_environment(**settings: object) -> dict[str, str]:
    """This environment without settings of a relay or a client, and with these."""
    ours = ("PAGERMCP_", "PAGER_", "SERVER_")
    kept = {k: v for k, v in os.environ.items() if k not in _SETTINGS and not k.startswith(ours)}
    return {**kept, **{name: str(value) for name, value in settings.items()}}


def until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Wait for another process: the condition's first true value. Fails when there is none in time."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not (value := condition()):
        assert time.monotonic() < deadline, "what was waited for did not happen"
        pause.wait(0.005)
    return value


def require(tool: str, package: str) -> str:
    """The path of an outside tool. Without it the test is skipped, or fails where PAGERMCP_STRICT is set."""
    return shutil.which(tool) or missing(f"{tool} is missing: apt-get install -y {package}")


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail where PAGERMCP_STRICT is set."""
    if os.environ.get("PAGERMCP_STRICT"):
        pytest.fail(reason)
    pytest.skip(reason)


def from_npm(package: str, version: str, pattern: str) -> str:
    """The path of an agent's program, out of a package of npm whose scripts are not run. It has hundreds of megabytes,
    so it is only fetched where PAGERMCP_STRICT is set, once; elsewhere its tests are skipped."""
    folder = REPOSITORY / ".cache" / f"{package.rpartition('/')[2]}-{version}"
    folder.mkdir(parents=True, exist_ok=True)

    def fetched() -> str | None:
        home = clean_environment(HOME=folder / "home", XDG_CONFIG_HOME=folder / "home")
        for path in folder.glob(f"node_modules/{pattern}"):
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):  # for another CPU or C library
                told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, env=home)
                if version in told.stdout:
                    return str(path)
        return None

    with FileLock(f"{folder}.lock"):
        if path := fetched():
            return path
        if not os.environ.get("PAGERMCP_STRICT"):
            missing(f"{package} is not there; it is fetched where PAGERMCP_STRICT is set")
        command = [require("npm", "npm"), "install", "--ignore-scripts", "--no-audit", "--no-fund"]
        fetch = [*command, "--prefix", folder, f"{package}@{version}"]
        done = subprocess.run(fetch, capture_output=True, text=True, timeout=900)
        return fetched() or missing(f"{package} {version} can't be fetched for this machine: {done.stderr[-500:]}")


def as_user(user: int, imports: str, script: str) -> list[str]:
    """A command that runs Python code as another user, who may have no access to where Python itself is."""
    become = f"import os; os.setgroups([]); os.setgid({user}); os.setuid({user})"
    return [sys.executable, "-c", f"{imports}\n{become}\n{script}"]


class Relay:
    """A relay in a process of its own."""

    def __init__(
        self,
        spool: Path,
        log: Path,
        user: int | None = None,
        prefix: Sequence[str] = (),
        prelude: str = "",
        program: Path | None = None,
        inherits: Sequence[int] = (),
        **settings: object,
    ) -> None:
        """prefix: what runs the command; prelude: Python code that runs before the relay, in its process; program: a
        `pagermcp` that was installed, which is not to find this checkout's; inherits: descriptors that it is given."""
        self.spool = spool
        self.log = log
        environment = clean_environment(**{"PORT": 0, "DATA_DIR": spool, **settings})
        command = [sys.executable, "-c", f"{prelude}\nfrom pagermcp.cli import main\nmain()"]
        if user is not None:
            command = as_user(user, RELAY_IMPORTS, "main()")
        if program is not None:
            command = [str(program)]
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [*prefix, *command],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment,
                cwd=program.parent if program else REPOSITORY,
                pass_fds=inherits,
            )
        assert self.process.stdout is not None
        self.greeting = self.process.stdout.readline()
        assert " on http" in self.greeting, f"the relay did not start: {log.read_text()}"
        self.url = self.greeting.split(" on ")[1].split(",")[0]
        self.port = int(self.url.rpartition(":")[2])
        self._threads = concurrent.futures.ThreadPoolExecutor(64)

    def post(self, path: str, data: Any = None, **options: Any) -> requests.Response:
        return requests.post(self.url + path, data=data, timeout=30, **options)

    def get(self, path: str, **options: Any) -> requests.Response:
        return requests.get(self.url + path, **{"timeout": 60, **options})

    def notify(self, address: str, data: Any = None, **options: Any) -> requests.Response:
        if data is None and "json" not in options:
            data = "hello"
        headers = {"Authorization": f"Bearer {address}", **options.pop("headers", {})}
        return self.post("/notify", data, headers=headers, **options)

    def with_key(self, key: str, method: str, path: str, **options: Any) -> requests.Response:
        """A call with the mailbox's key, or its number, in the Authorization header."""
        headers = {"Authorization": f"Bearer {key}"}
        return requests.request(method, self.url + path, headers=headers, **{"timeout": 60, **options})

    def lease(self, key: str, query: str = "lease=60&timeout=0") -> list[dict[str, Any]]:
        """The pages that `GET /wait` gives."""
        answer = self.with_key(key, "GET", f"/wait?{query}")
        assert answer.status_code == 200, answer.text
        pages: list[dict[str, Any]] = answer.json()["pages"]
        return pages

    def receipt(self, address: str, id: str) -> dict[str, Any]:
        answer = self.with_key(address, "GET", f"/receipts/{id}")
        assert answer.status_code == 200, answer.text
        receipt: dict[str, Any] = answer.json()
        return receipt

    def state(self, address: str, id: str) -> str:
        """Where a page is, or what became of it."""
        receipt = self.receipt(address, id)
        return str(receipt.get("outcome") or receipt["state"])

    def waiters(self, address: str) -> int:
        """How many requests wait at this mailbox: a report without a body tells, and brings no page."""
        return int(self.notify(address, "", headers={"Pager-Run": "test"}).json()["waiters"])

    def has_reader(self, number: str) -> bool:
        return self.waiters(number) > 0

    def start_waiting(self, key: str, query: str = "") -> "concurrent.futures.Future[requests.Response]":
        """A request that waits; once this returns the relay knows of it."""
        waiting = self._threads.submit(self.get, f"/mailboxes/{key}/wait{query}")
        until(lambda: (self.spool / "new" / number(key)).is_dir() or waiting.done())
        return waiting

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def new(self, key: str) -> Path:
        return self.spool / "new" / number(key)

    def archived(self, key: str) -> list[Path]:
        return sorted(self.spool.glob(f"archive/*/{number(key)}/*.json"))

    def descriptors(self) -> int:
        """How many are open in its process."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def memory(self) -> int:
        """The bytes of memory that its process has."""
        (line,) = [line for line in self._proc("status").splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) * 1024

    def cpu_seconds(self) -> float:
        """What its process has used."""
        fields = self._proc("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def descriptor_limits(self) -> tuple[int, int]:
        """The soft and the hard limit of its process."""
        (line,) = [line for line in self._proc("limits").splitlines() if line.startswith("Max open files")]
        soft, hard = line.split()[3:5]
        return int(soft), int(hard)

    def _proc(self, file: str) -> str:
        return Path(f"/proc/{self.process.pid}/{file}").read_text()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Stop it; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(20)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._threads.shutdown()
        return code


class _Process(subprocess.Popen[Any]):
    """One that does not outlive a test that has failed."""

    def __exit__(self, kind: Any, *rest: Any) -> None:
        if kind:
            self.kill()
        super().__exit__(kind, *rest)


class Client:
    """The `pagermcp` command in a folder with a session, for a relay at `url`."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.key = new_key()
        self.number = number(self.key)
        self.state = folder / "state"
        self.outbox = self.state / "pagermcp" / "outbox"
        self.environment = clean_environment(PAGER_URL=url, XDG_STATE_HOME=self.state, HOME=folder)
        (folder / ".pager_session").write_text(self.key + "\n")
        (folder / ".pager_session").chmod(0o600)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "pagermcp", *arguments]

    def start(self, *arguments: str, environment: dict[str, str] | None = None, **options: Any) -> Any:
        """The command in a process of its own, with pipes unless `options` of Popen say otherwise."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        env = self.environment | (environment or {})
        return _Process(self.command(*arguments), cwd=self.folder, env=env, **{**pipes, **options})

    def __call__(
        self, *arguments: str, input: str | bytes = "", code: int | None = 0, **options: Any
    ) -> "subprocess.CompletedProcess[str]":
        """Run the command to its end; it is expected to exit with `code`."""
        text = isinstance(input, str)
        with self.start(*arguments, **{"stdin": subprocess.PIPE, "text": text, **options}) as process:
            try:
                output, errors = process.communicate(input, timeout=60)
            except BaseException:
                process.kill()
                raise
        done = subprocess.CompletedProcess(arguments, process.returncode, output, errors)
        assert code is None or done.returncode == code, (done.returncode, errors)
        assert "Traceback" not in str(errors)
        return done


@pytest.fixture
def client(tmp_path: Path, relay: Relay) -> Client:
    """A client of the file's relay, in a folder and a mailbox of its own."""
    return Client(tmp_path, relay.url)


@pytest.fixture
def start_relay(tmp_path: Path) -> Iterator[Callable[..., Relay]]:
    """Start a relay with these settings; all of them stop with the test."""
    relays: list[Relay] = []

    def start(spool: Path | None = None, **settings: Any) -> Relay:
        relays.append(Relay(spool or tmp_path / "spool", tmp_path / "log", **settings))
        return relays[-1]

    yield start
    for relay in relays:
        relay.stop(signal.SIGKILL if relay.process.poll() is None else signal.SIGTERM)


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    """One relay with default settings for all tests of a file, each of which uses mailboxes of its own."""
    folder = tmp_path_factory.mktemp("relay")
    relay = Relay(folder / "spool", folder / "log")
    yield relay
    assert relay.stop() == 0
    assert "Traceback" not in relay.log.read_text()


@pytest.fixture
def key() -> str:
    return new_key()


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that other users can reach, as pytest's own are not; it belongs to nobody."""
    folder = Path(tempfile.mkdtemp(prefix="pagermcp-"))
    os.chmod(folder, 0o755)
    os.chown(folder, NOBODY, NOBODY)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(str(tmp_path / "spool"))
