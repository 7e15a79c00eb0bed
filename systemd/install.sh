#!/bin/sh
# Installs the relay of this checkout as a systemd service, or removes it again. Says each step that it takes.
set -eu
umask 022

usage() {
    cat <<'TEXT'
systemd/install.sh [--dry-run]              install, or upgrade: a venv in /opt/pagermcp, units, a user, a folder
systemd/install.sh --uninstall [--dry-run]  remove all that, but neither pages nor settings

--dry-run shows what would be done, and does nothing.
DESTDIR=/some/root: into that tree; nothing is started.   PYTHON=/usr/bin/python3.13: the venv's Python.
TEXT
}

fail() {
    printf '%s\n' "$*" >&2
    exit 1
}

# run COMMAND…: say it, and do it unless this is a dry run.
run() {
    printf '%s\n' "$*"
    [ -n "$dry" ] || "$@"
}

# each FUNCTION: call it with every file of ours, and where it goes.
each() {
    "$1" pagermcp.service /etc/systemd/system/pagermcp.service
    "$1" pagermcp.socket /etc/systemd/system/pagermcp.socket
    "$1" pagermcp-listen@.service /etc/systemd/user/pagermcp-listen@.service
    "$1" pagermcp.sysusers.conf /etc/sysusers.d/pagermcp.conf
    "$1" pagermcp.tmpfiles.conf /etc/tmpfiles.d/pagermcp.conf
}

put() {
    run install -D -m 0644 "$checkout/systemd/$1" "$root$2"
}

take() {
    [ ! -f "$root$2" ] || run rm "$root$2"
}

systemd_runs() {
    [ -z "$root" ] && { [ -n "$dry" ] || [ -d /run/systemd/system ]; }
}

check_python() {
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
        fail "$python is not Python 3.11 or newer. Name one: PYTHON=/path/to/python3 $0"
    "$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python has no ensurepip: apt-get install -y python3-venv"
    base=$("$python" -c 'import sys; print(sys.base_prefix)')
    case $base/ in
    /home/* | /root/* | /run/user/* | /tmp/* | /var/tmp/*)
        fail "$python is in $base, where the service can't look: PYTHON=/usr/bin/python3 $0"
        ;;
    esac
}

install_all() {
    check_python
    [ ! -d "$venv" ] || [ -f "$venv/pyvenv.cfg" ] || fail "$venv is there and is no venv: move it away"
    run "$python" -m venv "$venv"
    run "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade "$checkout"
    each put
    [ -z "$root" ] || return 0
    run systemd-sysusers /etc/sysusers.d/pagermcp.conf
    run systemd-tmpfiles --create /etc/tmpfiles.d/pagermcp.conf
    systemd_runs || return 0
    run systemctl daemon-reload
    run systemctl enable pagermcp.socket pagermcp.service
    run systemctl start pagermcp.socket
    run systemctl restart pagermcp.service # returns when the relay answers
    run systemctl --no-pager --lines 0 status pagermcp.service
}

remove_all() {
    if systemd_runs && [ -f /etc/systemd/system/pagermcp.service ]; then
        run systemctl disable --now pagermcp.socket pagermcp.service
    fi
    each take
    [ ! -f "$venv/pyvenv.cfg" ] || run rm -r "$venv"
    ! systemd_runs || run systemctl daemon-reload
    echo "Left, if there: the pages in $root/var/lib/pagermcp, the settings in $root/etc/pagermcp, what systemctl edit made, the user pagermcp."
}

dry='' uninstall=''
for argument; do
    case $argument in
    --dry-run) dry=1 ;;
    --uninstall) uninstall=1 ;;
    -h | --help) usage && exit ;;
    *) usage >&2 && exit 2 ;;
    esac
done

checkout=$(cd "$(dirname "$0")/.." && pwd)
root=${DESTDIR-}
venv=$root/opt/pagermcp
python=${PYTHON:-python3}

[ -n "$dry$root" ] || [ "$(id -u)" -eq 0 ] || fail "this needs root: sudo $0${1+ $*}"
if [ -n "$uninstall" ]; then
    remove_all
else
    install_all
fi
