#!/bin/sh
# pager.sh: run a command, watch a process or just say something, and page a mailbox about it. One page, sent at the end.
# Needs a POSIX shell, awk, od, tail, tee, mkfifo and curl. The relay that serves this file fills its own address in.
# Its variables begin with pgr_, so that none is the caller's: the command must find its environment as it was.
set -u

pgr_url=${PAGER_URL:-http://127.0.0.1:8080}

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
  PAGER_URL              the relay (default $pgr_url)

The output of the command appears as usual. A relay that can't be reached is said on standard error and never changes
the exit code of --run. What kills the command (Ctrl-C, a closed terminal) is paged as its failure; a TERM sent to this
script alone waits until the command has ended. Exit codes otherwise: 0 paged, 1 --notify or --pid could not page,
2 wrong call.

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

pgr_mode='' pgr_command='' pgr_pid='' pgr_session='' pgr_message='' pgr_job_id='' pgr_project='' pgr_fields=''
pgr_success_status=success pgr_fail_status=failed pgr_tail=10 pgr_log='' pgr_success_cmd='' pgr_interval=10
pgr_dry='' pgr_code='' pgr_verbose=''

set_mode() {
    [ -z "$pgr_mode" ] || wrong "$1 and --$pgr_mode exclude each other"
    pgr_mode=${1#--}
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

# page STATUS EXIT_CODE: write the page's JSON to $pgr_work/page; the logs are taken from $pgr_work/logs.
page() {
    {
        printf '{'
        [ -z "$pgr_project" ] || printf '"PROJECT":%s,' "$(quoted "$pgr_project")"
        printf '"JOB_ID":%s,"status":%s,' "$(quoted "$pgr_job_id")" "$(quoted "$1")"
        printf '"message":%s,"exit_code":%s,' "$(quoted "$pgr_message")" "$2"
        printf '"logs":%s%s}' "$(json_string <"$pgr_work/logs")" "$pgr_fields"
    } >"$pgr_work/page"
    if [ -n "$pgr_verbose" ]; then
        cat "$pgr_work/page" >&2
        echo >&2
    fi
}

# Send $pgr_work/page. The key goes to curl by standard input and is on no command line. Only a refused connection, after
# which nothing can have arrived, is tried again.
send() {
    pgr_tries=3
    while :; do
        pgr_status=$(printf 'header = "Authorization: Bearer %s"\n' "$pgr_key" | curl --silent --show-error --max-time 20 \
            --config - --header 'Content-Type: application/json' --data-binary "@$pgr_work/page" \
            --output "$pgr_work/answer" --write-out '%{http_code}' "$pgr_url/notify" 2>"$pgr_work/error")
        pgr_code=$?
        pgr_tries=$((pgr_tries - 1))
        if [ "$pgr_code" -ne 7 ] || [ "$pgr_tries" -eq 0 ]; then
            break
        fi
        sleep 1
    done
    [ "$pgr_code" -ne 0 ] || [ "$pgr_status" != 202 ] || return 0
    printf 'pager.sh: not paged: %s\n' "$(cat "$pgr_work/error" "$pgr_work/answer" 2>/dev/null)" >&2
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
    --run) set_mode --run && pgr_command=$2 && shift ;;
    --pid) set_mode --pid && pgr_pid=$2 && shift ;;
    --notify) set_mode --notify ;;
    --session) pgr_session=$2 && shift ;;
    --message) pgr_message=$2 && shift ;;
    --job-id) pgr_job_id=$2 && shift ;;
    --project) pgr_project=$2 && shift ;;
    --field)
        case $2 in
        =* | PROJECT=* | JOB_ID=* | status=* | message=* | exit_code=* | logs=* | uuid=*)
            wrong "--field ${2%%=*}: has no name, or one that is taken"
            ;;
        *=*) pgr_fields="$pgr_fields,$(quoted "${2%%=*}"):$(quoted "${2#*=}")" ;;
        *) wrong "--field needs NAME=VALUE, not $2" ;;
        esac
        shift
        ;;
    --success-status) pgr_success_status=$2 && shift ;;
    --fail-status) pgr_fail_status=$2 && shift ;;
    --tail) pgr_tail=$2 && shift ;;
    --log) pgr_log=$2 && shift ;;
    --success-cmd) pgr_success_cmd=$2 && shift ;;
    --interval) pgr_interval=$2 && shift ;;
    --dry-run) pgr_dry=1 pgr_code=0 ;;
    --dry-run=*) pgr_dry=1 pgr_code=${1#--dry-run=} ;;
    --verbose) pgr_verbose=1 ;;
    -h | --help)
        usage
        exit 0
        ;;
    *) wrong "unknown option $1; see --help" ;;
    esac
    shift
done

case $pgr_tail in '' | *[!0-9]*) wrong "--tail needs a number of lines, not $pgr_tail" ;; esac
case $pgr_interval in '' | *[!0-9]* | 0) wrong "--interval needs a number of seconds, not $pgr_interval" ;; esac
if [ -n "$pgr_dry" ]; then
    case $pgr_code in
    [0-9] | [1-9][0-9] | 1[0-9][0-9] | 2[0-4][0-9] | 25[0-5]) ;;
    *) wrong "--dry-run needs an exit code from 0 to 255, not '$pgr_code'" ;;
    esac
fi
case $pgr_mode in
'') wrong 'nothing to do: give --run COMMAND, --run - to read the command from standard input, --pid or --notify' ;;
pid) case $pgr_pid in '' | *[!0-9]*) wrong "--pid needs the number of a process, not $pgr_pid" ;; esac ;;
run)
    [ "$pgr_command" != - ] || pgr_command=$(cat)
    [ -n "$pgr_command" ] || wrong '--run has no command'
    ;;
esac

if [ -z "$pgr_session" ] && [ ! -f .pager_session ]; then
    wrong 'no mailbox: there is no ./.pager_session; give --session UUID or --session FILE'
fi
pgr_session=${pgr_session:-.pager_session}
if [ -f "$pgr_session" ]; then
    pgr_key=$(tr -d ' \t\r\n' <"$pgr_session")
else
    pgr_key=$pgr_session
fi
case $pgr_key in
*[!0-9A-Fa-f-]* | '') wrong "$pgr_session is no file with a UUID in it, and no UUID" ;;
esac

pgr_work=''
trap '[ -z "$pgr_work" ] || rm -rf "$pgr_work"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
pgr_work=$(trap '' HUP INT TERM && exec mktemp -d) || exit 2
: >"$pgr_work/logs"
pgr_message_given=$pgr_message
pgr_message=${pgr_message:-process done}

if [ -n "$pgr_dry" ]; then
    : "${pgr_job_id:=${pgr_pid:-$pgr_mode}}"
    if [ "$pgr_code" -eq 0 ]; then page "$pgr_success_status" 0; else page "$pgr_fail_status" "$pgr_code"; fi
    cat "$pgr_work/page"
    echo
    exit "$pgr_code"
fi

case $pgr_mode in
notify)
    if [ -z "$pgr_message_given" ] && [ ! -t 0 ]; then
        pgr_message=$(tail -c 8192)
        pgr_message=${pgr_message:-process done}
    fi
    : "${pgr_job_id:=notify}"
    page "$pgr_success_status" 0
    send || exit 1
    ;;
pid)
    : "${pgr_job_id:=$pgr_pid}"
    while alive "$pgr_pid"; do sleep "$pgr_interval"; done
    if [ -n "$pgr_success_cmd" ]; then sh -c -- "$pgr_success_cmd" 2>&1 | tail -c 8192 >"$pgr_work/logs"; fi
    page "$pgr_success_status" null
    send || exit 1
    ;;
run)
    : "${pgr_job_id:=run}"
    case $pgr_log in -*) pgr_log=./$pgr_log ;; esac
    pgr_output=${pgr_log:-$pgr_work/output}
    : >"$pgr_output" || exit 2
    mkfifo "$pgr_work/out" "$pgr_work/err" || exit 2
    (trap '' HUP TERM && exec tee -a "$pgr_output") <"$pgr_work/out" & # these two see the command through to its end
    pgr_out=$!
    (trap '' HUP TERM && exec tee -a "$pgr_output") <"$pgr_work/err" >&2 &
    pgr_err=$!
    trap : HUP INT TERM PIPE # the command may die of what the terminal sends to all; we still have to page
    sh -c -- "$pgr_command" >"$pgr_work/out" 2>"$pgr_work/err"
    pgr_exit_code=$?
    # The rest of the output is on its way; but a child left in the background may keep it open for ever.
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        alive "$pgr_out" || alive "$pgr_err" || break
        sleep 0.1 2>/dev/null || sleep 1
    done
    if [ "$pgr_exit_code" -eq 0 ]; then
        pgr_status=$pgr_success_status
        if [ -n "$pgr_success_cmd" ]; then sh -c -- "$pgr_success_cmd" 2>&1 | tail -c 8192 >"$pgr_work/logs"; fi
    else
        pgr_status=$pgr_fail_status
    fi
    if [ "$pgr_tail" -gt 0 ] && [ ! -s "$pgr_work/logs" ]; then
        tail -n "$pgr_tail" "$pgr_output" | tail -c 8192 >"$pgr_work/logs"
    fi
    page "$pgr_status" "$pgr_exit_code"
    send
    exit "$pgr_exit_code"
    ;;
esac
