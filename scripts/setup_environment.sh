#!/bin/sh
# Make .venv ready for use:  scripts/setup_environment.sh [extra ...]
#
# Installs torch, then this package (editable) with the named extras of pyproject.toml, at the
# versions in constraints.txt. Does nothing when that was done before and neither file changed.
#
#   PYTHON   the Python that .venv is made with (python3 unless said)
#   TORCH    `cpu` asks for the CPU build of torch
set -eu
CDPATH='' cd -- "$(dirname -- "$0")/.."

venv=.venv
log=$venv/install.log
pinned_torch=$(sed -n 's/^torch==//p' constraints.txt)

say() { printf '%s\n' "$*"; }
refuse() {
    printf '%s\n' "$*" >&2
    exit 1
}

# --- nothing to do? -----------------------------------------------------------------------
# One stamp per extra, written last: an interrupted installation has none, and is done again.
signature="$(cat pyproject.toml constraints.txt scripts/setup_environment.sh | cksum) $(pwd)"

stamp() { printf '%s/isotropy-%s.stamp' "$venv" "$1"; }

missing_parts() {
    for part in core "$@"; do
        [ "$(cat "$(stamp "$part")" 2>/dev/null)" = "$signature" ] || printf '%s\n' "$part"
    done
}

# Does .venv have a Python that runs, is new enough, has pip, and is the one that was asked for?
environment_works() {
    "$venv/bin/python" -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || return 1
    [ -z "${PYTHON:-}" ] || [ "$(version "$PYTHON")" = "$(version "$venv/bin/python")" ]
}
version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

case "${TORCH:-}" in
    '' | cpu) ;;
    *) refuse "TORCH=$TORCH is not known: leave it out, or say TORCH=cpu for the CPU build." ;;
esac
works=no
if [ -d "$venv" ] && environment_works; then works=yes; fi
if [ $works = yes ] && [ -z "$(missing_parts "$@")" ]; then exit 0; fi

# --- a Python that will do ----------------------------------------------------------------
check_python() {
    python=${PYTHON:-python3}
    # When .venv itself is activated, what it was made with: it cannot make itself anew.
    case "$(command -v "$python" 2>/dev/null)" in
        "$(pwd)/$venv"/*) python=$("$python" -c 'import sys; print(sys._base_executable)' 2>/dev/null) || python=/usr/bin/python3 ;;
    esac
    found=$(version "$python") ||
        refuse "Python 3.11 or newer is needed, and '$python' does not run: install one, or name it with PYTHON=/path/to/python3."
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        advice="install one, or name it with PYTHON=/path/to/python3"
        for newer in python3.11 python3.12 python3.13; do
            if [ "$(version "$newer")" = "${newer#python}" ]; then advice="say PYTHON=$newer, which is here"; fi
        done
        refuse "Python 3.11 or newer is needed, and '$python' is $found: $advice."
    fi
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        refuse "'$python' cannot make a virtual environment: install its venv package (on Debian and Ubuntu: apt install python$found-venv), or name another Python with PYTHON=."
}

# --- a torch that is already there --------------------------------------------------------
# Prints its version if `$1` can import torch 2.11 or newer. A pre-release of 2.11 itself is older.
usable_torch() {
    "$1" - 2>/dev/null <<'PROBE'
import importlib.metadata, re, sys
import torch
version = importlib.metadata.version("torch").partition("+")[0]
numbers, suffix = re.match(r"([0-9.]*[0-9])(.*)", version).groups()
release = tuple(int(part) for part in numbers.split("."))
if release < (2, 11) or (release[:3] in ((2, 11), (2, 11, 0)) and re.match(r"\.?(a|b|rc|dev)", suffix)):
    sys.exit(1)
print(version)
PROBE
}

make_environment() {
    check_python
    if [ -e "$venv" ]; then say "$venv is incomplete, or not for this Python; it is made anew."; fi
    outer_torch=$(usable_torch "$python") || outer_torch=
    share=
    if [ -n "$outer_torch" ]; then share=--system-site-packages; fi
    say "Making $venv with Python $found."
    rm -rf "$venv"
    report=$("$python" -m venv $share "$venv" 2>&1) || {
        printf '%s\n' "$report" | tail -n 15 >&2
        refuse "'$python' could not make $venv; the lines above say why."
    }
    if [ -n "$outer_torch" ] && [ -z "$(usable_torch "$venv/bin/python")" ]; then
        # The outer Python is a virtual environment itself, which --system-site-packages looks past.
        site=$("$python" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))')
        printf '%s\n' "$site" >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer_torch.pth"
    fi
}

# --- pip, quietly -------------------------------------------------------------------------
ticker=
stop_ticker() {
    if [ -n "$ticker" ]; then
        kill "$ticker" 2>/dev/null || true
        wait "$ticker" 2>/dev/null || true
        ticker=
        printf '\r\033[K' >&2
    fi
}
trap stop_ticker EXIT
trap 'exit 130' INT TERM

count_seconds() {
    seconds=0
    while sleep 1; do
        seconds=$((seconds + 1))
        printf '\r  %s s' $seconds >&2
    done
}

# All of pip's output goes to the log; on a terminal the seconds are counted meanwhile.
pip_install() {
    if [ -t 2 ]; then
        count_seconds &
        ticker=$!
    fi
    status=0
    # The variables, unlike --constraint, also hold for what pip installs to build the package.
    PIP_CONSTRAINT=$constraints PIP_BUILD_CONSTRAINT=$constraints PIP_DISABLE_PIP_VERSION_CHECK=1 \
        "$venv/bin/python" -m pip install --no-input --progress-bar off "$@" >>"$log" 2>&1 || status=$?
    stop_ticker
    return $status
}

pip_failed() {
    tail -n 15 "$log" >&2
    refuse "Installing $1 failed; the lines above are the last of $log."
}

install_torch() {
    constraints=constraints.txt
    torch=$(usable_torch "$venv/bin/python") || torch=
    if [ -n "$torch" ]; then
        say "torch $torch is already there and is used."
        if [ "$torch" != "$pinned_torch" ]; then
            constraints=$venv/constraints.txt
            { sed '/^# torch,/,/^$/d' constraints.txt && say "torch==$torch"; } >$constraints
        fi
        return
    fi
    wanted=torch==$pinned_torch
    if [ "$(uname -s)" != Linux ]; then
        say "Installing torch $pinned_torch, a download of about 200 MB."
    elif [ "${TORCH:-}" = cpu ]; then
        wanted=$wanted+cpu
        say "Installing torch $pinned_torch for the CPU, a download of about 200 MB."
    else
        say "Installing torch $pinned_torch, a download of about 3 GB with its CUDA packages (about 200 MB where pip is" \
            "set up for CPU builds); make learn TORCH=cpu asks for the CPU build."
    fi
    # Without its torch line: with it, pip calls a missing build a conflict between $wanted and the pin.
    constraints=$venv/constraints.txt
    sed '/^torch==/d' constraints.txt >$constraints
    if ! pip_install "$wanted"; then
        if [ "$wanted" != "torch==$pinned_torch" ] && grep -q "No matching distribution found for torch" "$log"; then
            refuse "pip found no $wanted: point PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS to where CPU builds are kept, as PyTorch's installation page describes."
        fi
        pip_failed torch
    fi
    constraints=constraints.txt
}

install_package() {
    extras=$(missing_parts "$@" | sed '/^core$/d' | paste -s -d , -)
    target=.
    if [ -n "$extras" ]; then target=".[$extras]"; fi
    say "Installing isotropy${extras:+ with what it needs for: $extras}."
    pip_install --editable "$target" || pip_failed isotropy
}

imports_work() {
    "$venv/bin/python" -c '
import click, jinja2, matplotlib, numpy, PIL, rich, safetensors, scipy, torch
import importlib.util, sys
sys.exit(importlib.util.find_spec("isotropy") is None)' >>"$log" 2>&1
}

install() {
    : >"$log"
    install_torch
    install_package "$@"
}

# --- do it --------------------------------------------------------------------------------
if [ $works = no ]; then make_environment; fi
rm -f "$(stamp core)"
install "$@"
if [ $works = yes ] && ! imports_work; then
    # An older .venv in which something was half installed, so that pip takes it for complete.
    make_environment
    install "$@"
fi
imports_work || pip_failed isotropy
for part in $(missing_parts "$@"); do
    printf '%s\n' "$signature" >"$(stamp "$part")"
done
