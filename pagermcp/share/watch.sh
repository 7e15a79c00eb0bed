#!/bin/sh
# Waits for messages in a room, prints each as one line, and ends. Without a message it ends after half an hour.
#
#   sh watch.sh            as AGENTCHAT_NAME, or by this machine's name
#
# AGENTCHAT_URL is the relay, AGENTCHAT_KEY the room's key (without it: the open room). What was read is remembered, so
# nothing is missed between two watchers. The key goes to curl by standard input and is on no command line.
set -u

url=${AGENTCHAT_URL:-http://127.0.0.1:8080}
name=${AGENTCHAT_NAME:-$(hostname -s 2>/dev/null || uname -n)}
name=$(printf '%s' "${name%%.*}" | tr -c 'A-Za-z0-9._-' '-')
[ -z "${AGENTCHAT_NAME:-}" ] || name=$AGENTCHAT_NAME
key=${AGENTCHAT_KEY:-}
header=''
[ -z "$key" ] || header="header = \"Authorization: Bearer $key\""
lasts=${AGENTCHAT_MINUTES:-30}
parent=$PPID # as it was at the start

umask 077
state=${XDG_STATE_HOME:-$HOME/.local/state}/agentchat
room=$(printf '%s %s' "$url" "$key" | cksum | cut -d ' ' -f 1)
files=$state/$(printf '%s' "$name" | tr '[:upper:]' '[:lower:]')-$room
cursor=$files.cursor
lock=$files.lock
mkdir -p "$state" || exit 2

# The process that started us, as it is now: of one that has gone we become somebody else's child.
parent() {
    if [ -r "/proc/$$/stat" ]; then
        sed 's/.*) [A-Z] \([0-9]*\).*/\1/' "/proc/$$/stat"
    else
        ps -o ppid= -p "$$" | tr -d ' '
    fi
}

# One watcher an agent and room: the one whose number is in the lock, and who has touched it within a minute. What a
# dead one left is taken over.
until mkdir "$lock" 2>/dev/null; do
    if [ ! -w "${lock%/*}" ]; then # or else another one has just ended, or there is one
        echo "agentchat: can't write ${lock%/*}: no state folder, or no name for an agent" >&2
        exit 2
    fi
    owner=$(cat "$lock/pid" 2>/dev/null) || owner=''
    if [ -z "$owner" ]; then # it may be about to say who it is
        sleep 1
        owner=$(cat "$lock/pid" 2>/dev/null) || owner=''
    fi
    if [ -n "$owner" ] && kill -0 "$owner" 2>/dev/null && [ -z "$(find "$lock/pid" -mmin +1 2>/dev/null)" ]; then
        echo "agentchat: $name is watching already (pid $owner)"
        exit 0
    fi
    mv "$lock" "$lock.$$" 2>/dev/null || continue
    if [ "$(cat "$lock.$$/pid" 2>/dev/null)" != "$owner" ] && [ ! -e "$lock" ]; then
        mv "$lock.$$" "$lock" # another one has just taken over, so it was his
    else
        rm -rf "$lock.$$"
    fi
done
asking=''
mine() { [ "$(cat "$lock/pid" 2>/dev/null)" = "$$" ]; }
trap 'kill $asking 2>/dev/null; ! mine || rm -rf "$lock"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
echo $$ >"$lock/pid"

ends=$(($(date +%s) + lasts * 60))
pause=1
while :; do
    left=$((ends - $(date +%s)))
    if [ "$left" -le 0 ]; then
        echo "agentchat: nothing new in $lasts minutes; start the watcher again"
        exit 0
    fi
    [ "$left" -lt 50 ] || left=50
    since=$(cat "$cursor" 2>/dev/null)
    curl --silent --max-time $((left + 15)) --output "$lock/lines" --write-out '%{http_code}' --config - \
        >"$lock/status" 2>/dev/null <<END &
$header
url = "$url/api/messages?for=$name&format=lines&limit=20&wait=$left${since:+&since=$since}"
END
    asking=$!
    while kill -0 "$asking" 2>/dev/null; do
        [ "$(parent)" = "$parent" ] || exit 0 # nobody is there to read it
        mine || exit 0                        # another one has taken over
        touch "$lock/pid"
        sleep 1
    done
    wait "$asking" || echo 000 >"$lock/status" # an answer that was cut is none
    asking=''
    case $(cat "$lock/status") in
    200)
        pause=1
        if [ -s "$lock/lines" ]; then
            cat "$lock/lines" || exit 1 # nobody has read it, so it is not remembered
            sed -n '$s/^MESSAGE id=\([0-9][0-9]*\).*/\1/p' "$lock/lines" >"$cursor.new"
            [ ! -s "$cursor.new" ] || mv "$cursor.new" "$cursor"
            exit 0
        fi
        [ -s "$cursor" ] || echo 0 >"$cursor" # from here on everything counts
        ;;
    4*)
        echo "agentchat: $url: $(cat "$lock/lines")"
        exit 1
        ;;
    *) # away, or about to stop: it comes back
        sleep "$pause"
        [ "$pause" -ge 30 ] || pause=$((pause * 2))
        ;;
    esac
done
