"""A real nginx or Caddy with the configuration in deploy/, in front of a relay on loopback."""

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
from conftest import REPOSITORY, clean_environment, require, until

KINDS = ("nginx", "caddy")
_UPSTREAM = "127.0.0.1:8080"
_NGINX = """{user}
daemon off;
pid {folder}/pid;
error_log {folder}/main.log;
events {{}}
http {{
    access_log {folder}/access.log;
    {temporary}
    include {folder}/pagermcp.conf;
}}
"""


class Proxy:
    """A proxy that serves, with what a client needs to know of it."""

    def __init__(self, kind: str, folder: Path, port: int, plain: int) -> None:
        """folder: with all that the proxy writes; plain: nginx's port for HTTP"""
        self.kind = kind
        self.folder = folder
        self.plain_url = f"http://127.0.0.1:{plain}"
        self.trusted = folder / "fullchain.pem"
        self.url = f"https://127.0.0.1:{port}" if kind == "nginx" else f"http://127.0.0.1:{port}"

    def call(self, method: str, path: str, key: str = "", **options: Any) -> requests.Response:
        headers = {**({"Authorization": f"Bearer {key}"} if key else {}), **options.pop("headers", {})}
        told = {"headers": headers, "verify": str(self.trusted), "timeout": 90, **options}
        return requests.request(method, self.url + path, **told)

    def curl(self, path: str) -> list[str]:
        """A command that gets this, and shows the status."""
        shown = ["--silent", "--show-error", "--output", "/dev/null", "--write-out", "%{http_code}"]
        return [require("curl", "curl"), *shown, "--cacert", str(self.trusted), self.url + path]


@contextlib.contextmanager
def proxied(kind: str, folder: Path, upstream: int) -> Iterator[Proxy]:
    """The proxy in front of whoever listens at that port."""
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        port, plain = one.getsockname()[1], other.getsockname()[1]
    proxy = Proxy(kind, folder, port, plain)
    command = {"nginx": _nginx, "caddy": _caddy}[kind](folder, f"127.0.0.1:{upstream}", port, plain)
    with (folder / "output.log").open("wb") as log:
        environment = clean_environment(HOME=folder, XDG_CONFIG_HOME=folder, XDG_DATA_HOME=folder)
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def listens() -> bool:
        assert process.poll() is None, (folder / "output.log").read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    try:
        until(listens)
        yield proxy
    finally:
        process.send_signal(signal.SIGTERM if kind == "nginx" else signal.SIGKILL)  # which Caddy's waits might outlast
        process.wait(20)


def _rendered(name: str, *changes: tuple[str, str]) -> str:
    text = (REPOSITORY / "deploy" / name).read_text()
    for old, new in changes:
        assert old in text, f"deploy/{name} has no {old!r} any more"
        text = text.replace(old, new)
    return text


def _nginx(folder: Path, upstream: str, port: int, plain: int) -> list[str | Path]:
    nginx = require("nginx", "nginx")
    key = ["-newkey", "rsa:2048", "-noenc", "-keyout", folder / "privkey.pem", "-out", folder / "fullchain.pem"]
    name = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([require("openssl", "openssl"), "req", "-x509", *key, *name], check=True, capture_output=True)
    text = _rendered(
        "nginx.conf",
        (_UPSTREAM, upstream),
        ("    listen [::]:80;\n", ""),
        ("    listen [::]:443 ssl http2;\n", ""),
        ("listen 80;", f"listen 127.0.0.1:{plain};"),
        ("listen 443 ", f"listen 127.0.0.1:{port} "),
        ("/etc/letsencrypt/live/pager.example.org", str(folder)),
        ("/var/log/nginx", str(folder)),
    )
    (folder / "pagermcp.conf").write_text(text)
    temporary = [f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")]
    user = "user root;" if os.geteuid() == 0 else ""  # pytest's folders are for nobody else
    main = _NGINX.format(user=user, folder=folder, temporary=" ".join(temporary))
    (folder / "nginx.conf").write_text(main)
    return [nginx, "-e", "stderr", "-p", folder, "-c", folder / "nginx.conf"]


def _caddy(folder: Path, upstream: str, port: int, plain: int) -> list[str | Path]:
    text = _rendered(
        "Caddyfile",
        (_UPSTREAM, upstream),
        ("\npager.example.org {", f"\nhttp://127.0.0.1:{port} {{"),
        ("\n{\n", "\n{\n\tadmin off\n"),
    )
    (folder / "Caddyfile").write_text(text)
    return [require("caddy", "caddy"), "run", "--adapter", "caddyfile", "--config", folder / "Caddyfile"]
