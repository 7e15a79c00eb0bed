#!/bin/sh
# pager.sh: run a command, watch a process or just say something, and page a mailbox about it. One page, sent at the end.
# Needs a POSIX shell, awk, od, tail, tee, mkfifo and curl. The relay that serves this file fills its own address in.
set -u
umask 077

url=${PAGER_URL:-http://127.0.0.1:8080}

usage() {
    cat <<TEXT
Usage: pager.sh MODE [OPTIONS]

Modes, of which one is needed:
  --run COMMAND          run a shell command, page when it ends, exit with its exit code
  --run -                the same, with the command read from standard input
  --pid PID              page when that process ends (its exit code can't be known)
  --notify               page at once; without --message the text is read from standard input

Options:
  --session UUID|FILE    mailbox to page, or the file that holds it (default ./.pager_session)
  --message TEXT         what to say (default "process done")
  --job-id ID            JOB_ID of the page (default: run, notify, or the PID)
  --project NAME         PROJECT of the page
  --field NAME=VALUE     one more field; may be given again
  --success-status TEXT  status of the page when all went well (default success)
  --fail-status TEXT     status of the page when the command failed (default failed)
  --tail N               send the last N lines of the output as "logs" (default 10; 0 for none)
  --log FILE             keep the output in FILE too
  --success-cmd COMMAND  on success, send what this prints as "logs" instead
  --interval SECONDS     how often --pid looks (default 10)
  --dry-run[=CODE]       run and send nothing: print the page, and exit with CODE (default 0)
  --verbose              print the page on standard error before it is sent
  --help                 this text

Environment:
  PAGER_URL              the relay (default $url)

The output of the command appears as usual. A relay that can't be reached is said on standard error and never changes
the exit code of --run. Exit codes otherwise: 0 paged, 1 --notify or --pid could not page, 2 wrong call.

Examples:
  pager.sh --run "make -j4" --message "Build finished" --tail 5
  echo "make test" | pager.sh --run - --job-id tests
  pager.sh --pid 1234 --message "the upload is through"
  df -h | pager.sh --notify --job-id disk
TEXT
}

wrong() {
    printf 'pager.sh: %s\n' "$*" >&2
    exit 2
}

mode='' command='' pid='' session='' message='' job_id='' project='' fields=''
success_status=success fail_status=failed tail=10 log='' success_cmd='' interval=10 dry_run='' verbose=''

set_mode() {
    [ -z "$mode" ] || wrong "$1 and --$mode exclude each other"
    mode=${1#--}
}

# Text on standard input as a JSON string. Bytes that are no UTF-8 become U+FFFD; all but ASCII is escaped, so that the
# result does not depend on locale, shell or awk. Half a character at the start, where a tail was cut, is left out.
json_string() {
    od -An -v -tx1 | awk '
        function value(h) {
            return (index(digits, substr(h, 1, 1)) - 1) * 16 + index(digits, substr(h, 2, 1)) - 1
        }
        function escape(code) {
            if (code >= 65536) {
                escape(55296 + int((code - 65536) / 1024))
                escape(56320 + (code - 65536) % 1024)
            } else printf "\\u%04x", code
        }
        function broken() { if (left > 0) escape(65533); left = 0 }
        function character(code) {
            if (code < least || code > 1114111 || (code >= 55296 && code <= 57343)) escape(65533)
            else escape(code)
        }
        function take(byte) {
            if (byte >= 128 && byte < 192) {
                if (left == 0) { if (begun) escape(65533); return }
                code = code * 64 + byte - 128
                if (--left == 0) character(code)
                return
            }
            broken()
            begun = 1
            if (byte == 34) printf "\\\""
            else if (byte == 92) printf "\\\\"
            else if (byte == 10) printf "\\n"
            else if (byte == 9) printf "\\t"
            else if (byte < 32 || byte == 127) escape(byte)
            else if (byte < 127) printf "%c", byte
            else if (byte >= 194 && byte < 224) { left = 1; code = byte - 192; least = 128 }
            else if (byte >= 224 && byte < 240) { left = 2; code = byte - 224; least = 2048 }
            else if (byte >= 240 && byte < 245) { left = 3; code = byte - 240; least = 65536 }
            else escape(65533)
        }
        BEGIN { digits = "0123456789abcdef"; printf "\"" }
        { for (i = 1; i <= NF; i++) take(value($i)) }
        END { broken(); printf "\"" }
    '
}

quoted() {
    printf '%s' "$1" | json_string
}

# page STATUS EXIT_CODE: write the page's JSON to $work/page; the logs are taken from $work/logs.
page() {
    {
        printf '{'
        [ -z "$project" ] || printf '"PROJECT":%s,' "$(quoted "$project")"
        printf '"JOB_ID":%s,"status":%s,' "$(quoted "$job_id")" "$(quoted "$1")"
        printf '"message":%s,"exit_code":%s,' "$(quoted "$message")" "$2"
        printf '"logs":%s%s}' "$(json_string <"$work/logs")" "$fields"
    } >"$work/page"
    if [ -n "$verbose" ]; then
        cat "$work/page" >&2
        echo >&2
    fi
}

# Send $work/page. The key goes to curl by standard input and is on no command line. Only a refused connection, after
# which nothing can have arrived, is tried again.
send() {
    tries=3
    while :; do
        status=$(printf 'header = "Authorization: Bearer %s"\n' "$key" | curl --silent --show-error --max-time 20 \
            --config - --header 'Content-Type: application/json' --data-binary "@$work/page" \
            --output "$work/answer" --write-out '%{http_code}' "$url/notify" 2>"$work/error")
        code=$?
        tries=$((tries - 1))
        if [ "$code" -ne 7 ] || [ "$tries" -eq 0 ]; then
            break
        fi
        sleep 1
    done
    [ "$code" -ne 0 ] || [ "$status" != 202 ] || return 0
    printf 'pager.sh: not paged: %s\n' "$(cat "$work/error" "$work/answer" 2>/dev/null)" >&2
    return 1
}

# A process that is there, also somebody else's, and not merely unburied.
alive() {
    if [ -r "/proc/$1/stat" ]; then
        case $(sed 's/.*) //' "/proc/$1/stat" 2>/dev/null) in '' | Z*) return 1 ;; esac
        return 0
    fi
    kill -0 "$1" 2>/dev/null || ps -p "$1" >/dev/null 2>&1
}

while [ $# -gt 0 ]; do
    case $1 in
    --run | --pid | --session | --message | --job-id | --project | --field | --success-status | --fail-status | --tail | --log | --success-cmd | --interval)
        [ $# -gt 1 ] || wrong "$1 needs a value"
        ;;
    esac
    case $1 in
    --run) set_mode --run && command=$2 && shift ;;
    --pid) set_mode --pid && pid=$2 && shift ;;
    --notify) set_mode --notify ;;
    --session) session=$2 && shift ;;
    --message) message=$2 && shift ;;
    --job-id) job_id=$2 && shift ;;
    --project) project=$2 && shift ;;
    --field)
        case $2 in
        =* | PROJECT=* | JOB_ID=* | status=* | message=* | exit_code=* | logs=* | uuid=*)
            wrong "--field ${2%%=*}: has no name, or one that is taken"
            ;;
        *=*) fields="$fields,$(quoted "${2%%=*}"):$(quoted "${2#*=}")" ;;
        *) wrong "--field needs NAME=VALUE, not $2" ;;
        esac
        shift
        ;;
    --success-status) success_status=$2 && shift ;;
    --fail-status) fail_status=$2 && shift ;;
    --tail) tail=$2 && shift ;;
    --log) log=$2 && shift ;;
    --success-cmd) success_cmd=$2 && shift ;;
    --interval) interval=$2 && shift ;;
    --dry-run) dry_run=0 ;;
    --dry-run=*) dry_run=${1#--dry-run=} ;;
    --verbose) verbose=1 ;;
    -h | --help)
        usage
        exit 0
        ;;
    *) wrong "unknown option $1; see --help" ;;
    esac
    shift
done

case $tail in '' | *[!0-9]*) wrong "--tail needs a number of lines, not $tail" ;; esac
case $interval in '' | *[!0-9]* | 0) wrong "--interval needs a number of seconds, not $interval" ;; esac
case ${dry_run:-0} in *[!0-9]*) wrong "--dry-run needs an exit code, not $dry_run" ;; esac
case $mode in
'') wrong 'nothing to do: give --run COMMAND, --run - to read the command from standard input, --pid or --notify' ;;
pid) case $pid in '' | *[!0-9]*) wrong "--pid needs the number of a process, not $pid" ;; esac ;;
run)
    [ "$command" != - ] || command=$(cat)
    [ -n "$command" ] || wrong '--run has no command'
    ;;
esac

if [ -z "$session" ] && [ ! -f .pager_session ]; then
    wrong 'no mailbox: there is no ./.pager_session; give --session UUID or --session FILE'
fi
session=${session:-.pager_session}
if [ -f "$session" ]; then
    key=$(tr -d ' \t\r\n' <"$session")
else
    key=$session
fi
case $key in
*[!0-9A-Fa-f-]* | '') wrong "$session is no file with a UUID in it, and no UUID" ;;
esac

work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
trap : INT TERM # the command gets them; we still have to page
: >"$work/logs"
message_given=$message
message=${message:-process done}

if [ -n "$dry_run" ]; then
    : "${job_id:=${pid:-$mode}}"
    if [ "$dry_run" -eq 0 ]; then page "$success_status" 0; else page "$fail_status" "$dry_run"; fi
    cat "$work/page"
    echo
    exit "$dry_run"
fi

case $mode in
notify)
    if [ -z "$message_given" ] && [ ! -t 0 ]; then
        message=$(tail -c 16384)
    fi
    : "${job_id:=notify}"
    page "$success_status" 0
    send || exit 1
    ;;
pid)
    : "${job_id:=$pid}"
    while alive "$pid"; do sleep "$interval"; done
    if [ -n "$success_cmd" ]; then sh -c "$success_cmd" 2>&1 | tail -c 8192 >"$work/logs"; fi
    page "$success_status" null
    send || exit 1
    ;;
run)
    : "${job_id:=run}"
    output=${log:-$work/output}
    : >"$output" || exit 2
    mkfifo "$work/out" "$work/err" || exit 2
    tee -a "$output" <"$work/out" &
    out=$!
    tee -a "$output" <"$work/err" >&2 &
    err=$!
    sh -c "$command" >"$work/out" 2>"$work/err"
    exit_code=$?
    # The rest of the output is on its way; but a child left in the background may keep it open for ever.
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        alive "$out" || alive "$err" || break
        sleep 0.1 2>/dev/null || sleep 1
    done
    if [ "$exit_code" -eq 0 ]; then
        status=$success_status
        if [ -n "$success_cmd" ]; then sh -c "$success_cmd" 2>&1 | tail -c 8192 >"$work/logs"; fi
    else
        status=$fail_status
    fi
    if [ "$tail" -gt 0 ] && [ ! -s "$work/logs" ]; then
        tail -n "$tail" "$output" | tail -c 8192 >"$work/logs"
    fi
    page "$status" "$exit_code"
    send
    exit "$exit_code"
    ;;
esac
