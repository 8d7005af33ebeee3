#!/bin/sh
# Makes apt on a CI machine fetch from several mirrors with fullbore, and undoes it. The GitHub action, the GitLab
# include and the lines for a Dockerfile all call this script. docs/guide/ci.md is for their users.
#
#   apt-setup.sh enable                  from now on, apt uses fullbore's methods
#   apt-setup.sh disable                 /etc/apt is as it was before
#   apt-setup.sh run COMMAND [WORD...]   enables, runs the command, and disables; its exit code is the command's
#
# Whatever goes wrong here, the job continues with apt's own methods, and a warning says why. The settings:
#
#   APT_FULLBORE_MIRRORS   addresses of mirrors; an empty line ends a set. A line that starts with / names a list in a
#                          file. Default: the lists of the `mirror+file:` sources of this machine
#   APT_FULLBORE_PROGRAM   path of the program
#   APT_FULLBORE_URL       or: a directory with fullbore-x86_64, fullbore-aarch64 and SHA256SUMS, as of a release
#   APT_FULLBORE_SHA256    SHA-256 of the program, or several; then SHA256SUMS is not fetched
#   APT_FULLBORE_STRICT    1 or true: fail instead of continuing without fullbore
#   APT_FULLBORE_NODE      a node that fetches where neither curl nor wget is installed; set by the GitHub action
#
# Their names do not begin with FULLBORE_, because fullbore warns about such variables if they set no flag.
set -u

# Program, list of mirrors, and a copy of the snippet that was there before. Not in /usr/local or /opt: hosted runners
# let everybody write there, and `fullbore apt enable` refuses such a place. Not in /run: nothing may run there on some
# machines. Another directory is for tests.
state=${APT_FULLBORE_STATE:-/usr/lib/fullbore-ci}
snippet=/etc/apt/apt.conf.d/90fullbore

# Longest time for one download. The program has 30 MB; a slower server would cost the job more than fullbore saves.
FETCH_S=120

say() {
    printf 'fullbore: %s\n' "$*"
}

warn() {
    if [ "${GITHUB_ACTIONS:-}" = true ]; then
        printf '::warning title=fullbore::%s\n' "$*"
    else
        printf 'warning: fullbore: %s\n' "$*" >&2
    fi
}

strict() {
    case ${APT_FULLBORE_STRICT:-} in
    1 | true | yes) return 0 ;;
    *) return 1 ;;
    esac
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# fetch URL FILE. Containers of CI jobs often have neither curl nor wget; apt itself can fetch over http everywhere, and
# over https where ca-certificates is installed.
fetch() {
    if command -v curl >/dev/null; then
        timeout "$FETCH_S" curl --fail --silent --show-error --location --retry 2 --connect-timeout 20 \
            --output "$2" "$1"
    elif command -v wget >/dev/null; then
        timeout "$FETCH_S" wget --quiet --tries=3 --timeout=20 --output-document="$2" "$1"
    elif [ -n "${APT_FULLBORE_NODE:-}" ]; then
        timeout "$FETCH_S" "$APT_FULLBORE_NODE" "$(dirname "$0")/action.js" fetch "$1" "$2"
    else
        timeout "$FETCH_S" /usr/lib/apt/apt-helper -qq -o APT::Sandbox::User=root -o Acquire::http::Timeout=20 \
            -o Acquire::https::Timeout=20 download-file "$1" "$2"
    fi
}

# Puts the program where only root can change it, and compares its hash there, before anything runs it.
place_program() {
    sums=
    if [ -n "${APT_FULLBORE_PROGRAM:-}" ]; then
        from=$APT_FULLBORE_PROGRAM
        if [ ! -f "$from" ]; then
            failure="there is no $from"
            return 1
        fi
    elif [ -n "${APT_FULLBORE_URL:-}" ]; then
        name=fullbore-$(uname -m)
        from=$work/$name
        if ! fetch "${APT_FULLBORE_URL%/}/$name" "$from"; then
            failure="cannot fetch ${APT_FULLBORE_URL%/}/$name"
            return 1
        fi
        if [ -z "${APT_FULLBORE_SHA256:-}" ]; then
            if ! fetch "${APT_FULLBORE_URL%/}/SHA256SUMS" "$work/SHA256SUMS"; then
                failure="cannot fetch ${APT_FULLBORE_URL%/}/SHA256SUMS"
                return 1
            fi
            # Hash, then a space or an asterisk, then the name.
            sums=$(sed -n "s/^\([0-9a-f]\{64\}\) [ *]\(\.\/\)\{0,1\}$name\$/\1/p" "$work/SHA256SUMS")
            if [ -z "$sums" ]; then
                failure="SHA256SUMS does not name $name"
                return 1
            fi
        fi
    else
        failure="neither a program nor an address of one is set (APT_FULLBORE_PROGRAM, APT_FULLBORE_URL)"
        return 1
    fi
    # Several hashes, such as one for each processor, may be on several lines.
    sums="$sums $(printf %s "${APT_FULLBORE_SHA256:-}" | tr 'A-F\n\t' 'a-f  ')"
    if ! as_root install -m 755 "$from" "$state/fullbore"; then
        failure="cannot copy $from to $state"
        return 1
    fi
    sum=$(sha256sum "$state/fullbore")
    sum=${sum%% *}
    if [ "${#sum}" != 64 ]; then
        failure="cannot hash $state/fullbore"
        return 1
    fi
    case " $sums " in
    *" $sum "*) ;;
    *[![:space:]]*)
        failure="$from has the SHA-256 $sum, expected: $(echo "$sums" | tr -s ' ')"
        return 1
        ;;
    esac
}

# The lists that this machine's sources name, as on GitHub's Ubuntu runners.
lists_of_sources() {
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources 2>/dev/null |
        sed 's/#.*//; s/[[:space:]]\{1,\}/\n/g' | sed -n 's|^mirror+file:\(//\)\{0,1\}/|/|p' | sort -u
}

# Writes the list of mirrors to $work/mirrors, and the names of other lists to $work/lists.
place_mirrors() {
    # Lines of a block of YAML may be indented, and a variable may be one line.
    printf '%s\n' "${APT_FULLBORE_MIRRORS:-}" | tr '\r\t' '  ' |
        sed 's/^ *//; /^#/d; s/ *$//; s/  */\n/g' >"$work/words"
    grep '^/' "$work/words" >"$work/lists"
    grep -v '^/' "$work/words" >"$work/mirrors"
    if ! grep -q . "$work/words"; then
        lists_of_sources >"$work/lists"
    fi
    if grep -q . "$work/mirrors"; then
        as_root install -m 644 "$work/mirrors" "$state/mirrors" && echo "$state/mirrors" >>"$work/lists"
    fi
    if [ ! -s "$work/lists" ]; then
        failure="no mirrors are set (APT_FULLBORE_MIRRORS), and no source of apt is a list of mirrors"
        return 1
    fi
}

try_enable() {
    place_program && place_mirrors || return 1
    set --
    while read -r list; do
        set -- "$@" --mirrors "$list"
    done <"$work/lists"
    if ! output=$(as_root "$state/fullbore" apt enable --program "$state/fullbore" "$@" 2>&1 </dev/null); then
        # A message for GitHub is one line.
        failure=$(printf %s "$output" | tr '\n' ' ')
        return 1
    fi
    if ! grep -qF "\"$state/fullbore\"" "$snippet" 2>/dev/null; then
        failure="$from is not fullbore: $snippet does not name it"
        return 1
    fi
    say "$output"
}

# Whether apt uses fullbore afterwards. If not, nothing has changed.
turn_on() {
    failure=
    if ! command -v apt-get >/dev/null; then
        failure="there is no apt-get"
    elif ! as_root true 2>/dev/null; then
        failure="not root, and sudo needs a password or is missing"
    elif [ -e "$state" ] && say "a job before this one was killed" && ! turn_off; then
        failure="cannot undo what it left"
    elif ! as_root mkdir -m 755 "$state"; then
        failure="cannot make $state"
    fi
    if [ -z "$failure" ]; then
        work=$(mktemp -d)
        # A machine may use fullbore already, perhaps with other mirrors.
        if [ -e "$snippet" ] && ! as_root cp -p "$snippet" "$state/snippet-before"; then
            failure="cannot copy $snippet"
        else
            try_enable || turn_off >/dev/null
        fi
        rm -rf "$work"
    fi
    if [ -n "$failure" ]; then
        warn "$failure. apt continues with its own methods."
        told=false
    else
        told=true
    fi
    if [ -n "${GITHUB_OUTPUT:-}" ]; then
        echo "enabled=$told" >>"$GITHUB_OUTPUT"
    fi
    [ $told = true ]
}

turn_off() {
    if [ ! -e "$state" ]; then
        say "nothing to undo"
        return 0
    fi
    if [ -e "$state/snippet-before" ]; then
        # apt does not read names that start with a dot.
        as_root cp -p "$state/snippet-before" "${snippet%/*}/.90fullbore.before" &&
            as_root mv "${snippet%/*}/.90fullbore.before" "$snippet" || return 1
        say "$snippet: as before"
    elif [ -x "$state/fullbore" ]; then
        # It leaves a file that somebody has edited, and says so.
        as_root "$state/fullbore" apt disable </dev/null || return 1
    fi
    as_root rm -rf "$state"
}

case ${1:-} in
enable)
    turn_on || ! strict || exit 1
    ;;
disable)
    if ! turn_off; then
        warn "cannot undo what \`enable\` did: see $snippet"
        ! strict || exit 1
    fi
    ;;
run)
    shift
    turn_on || ! strict || exit 1
    # A signal ends the command; then this goes on.
    trap : INT TERM HUP
    status=0
    "$@" || status=$?
    if [ -e "$state" ] && ! turn_off; then
        warn "cannot undo what \`enable\` did: see $snippet"
        [ "$status" != 0 ] || ! strict || status=1
    fi
    exit "$status"
    ;;
*)
    echo "usage: apt-setup.sh enable | disable | run COMMAND [WORD...]" >&2
    exit 2
    ;;
esac
exit 0
