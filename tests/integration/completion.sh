#!/usr/bin/env bash
# `kvxfer completion` and `kvxfer man`: the scripts are valid, bash completes from its script, and
# the manual page renders without a warning.
set -euo pipefail
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for shell in bash zsh fish; do
  "$KVXFER" completion "$shell" >"$scratch/$shell"
  if command -v "$shell" >/dev/null; then "$shell" -n "$scratch/$shell"; fi
done
"$KVXFER" man >"$scratch/kvxfer.1"

fail() {
  printf '%s\n' "$*" >&2
  exit 1
}

# shellcheck source=/dev/null
source "$scratch/bash"
complete -p kvxfer >/dev/null || fail "the script does not register kvxfer"

# Completes the last word.
completed() { # WORD...
  COMP_WORDS=("$@")
  COMP_CWORD=$(($# - 1))
  COMPREPLY=()
  _kvxfer
  printf '%s\n' "${COMPREPLY[*]:-}"
}
expect() { # WANTED WORD...
  local got
  got=$(completed "${@:2}")
  [[ $got == "$1" ]] || fail "completing '${*:2}': expected '$1', got '$got'"
}
expect "explain" kvxfer ex
expect "--version" kvxfer --v
expect "--bidirectional" kvxfer bench --bi
expect "write read" kvxfer bench --op ""
expect "read" kvxfer bench --op = r
expect "NHD" kvxfer demo --decode-layout N
expect "tcp" kvxfer ping --backend tc
expect "dgx-h100" kvxfer topo --fixture dgx-h
expect "bash" kvxfer completion ba
expect "" kvxfer ping --iters ""
[[ " $(completed kvxfer "") " != *" demo-worker "* ]] || fail "an internal subcommand is offered"

# Every subcommand is in every script and in the manual page.
commands=$("$KVXFER" --help | sed -n '/^Subcommands:/,$s/^  \([a-z]\+\) .*/\1/p')
[[ $(wc -w <<<"$commands") -ge 10 ]] || fail "the help lists no subcommands"
for command in $commands; do
  for file in bash zsh fish kvxfer.1; do
    grep -qw -- "$command" "$scratch/$file" || fail "$file lacks $command"
  done
done

# A minimal installation of groff has no macros for manual pages.
if command -v groff >/dev/null && groff -man -Tutf8 </dev/null >/dev/null 2>&1; then
  groff -man -Tutf8 -ww "$scratch/kvxfer.1" >"$scratch/text" 2>"$scratch/warnings" ||
    fail "groff refuses the manual page: $(<"$scratch/warnings")"
  [[ ! -s $scratch/warnings ]] || fail "the manual page has warnings: $(<"$scratch/warnings")"
fi
