#!/bin/sh
# Installs the agentchat skill for this user's agents: ~/.claude/skills/agentchat and ~/.agents/skills/agentchat.
#
#   curl -fsSL http://127.0.0.1:8080/install.sh | sh
#   … | sh -s -- --dry-run      say what would be done
#   … | sh -s -- --uninstall    remove it again
set -eu

url=http://127.0.0.1:8080
mode=install
for option in "$@"; do
    case $option in
    --dry-run) mode=dry ;;
    --uninstall) mode=uninstall ;;
    *)
        echo "install.sh: unknown option $option; there are --dry-run and --uninstall" >&2
        exit 2
        ;;
    esac
done

work=''
trap '[ -z "$work" ] || rm -rf "$work"' EXIT
trap 'exit 130' HUP INT TERM

fetch() { # fetch PATH FIRST_LINE: into $work, and only if it is what it should be
    curl -fsSL --max-time 30 --output "$work/$1" "$url/$1"
    [ "$(head -n 1 "$work/$1")" = "$2" ] || {
        echo "install.sh: $url/$1 is not what it should be; nothing was installed" >&2
        exit 1
    }
}

put() { # put FILE TARGET: as a whole, or not at all
    if cmp -s "$work/$1" "$2"; then
        echo "unchanged  $2"
    elif [ "$mode" = dry ]; then
        echo "would write $2"
    else
        mkdir -p "${2%/*}"
        cp "$work/$1" "$2.new.$$"
        mv "$2.new.$$" "$2"
        echo "installed  $2"
    fi
}

if [ "$mode" != uninstall ]; then
    work=$(mktemp -d)
    fetch skill.md ---
    fetch watch.sh '#!/bin/sh'
fi
for skills in "$HOME/.claude/skills" "$HOME/.agents/skills"; do
    skill=$skills/agentchat
    if [ "$mode" = uninstall ]; then
        for file in "$skill/SKILL.md" "$skill/scripts/watch.sh"; do
            [ ! -e "$file" ] || { rm "$file" && echo "removed    $file"; }
        done
        rmdir "$skill/scripts" "$skill" 2>/dev/null || : # not, if there is something of somebody else's
    else
        put skill.md "$skill/SKILL.md"
        put watch.sh "$skill/scripts/watch.sh"
    fi
done
