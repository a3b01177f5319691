# Shared by the tests that begin where a new user does: a copy of the sources as a clone has them, in a
# file system of its own. Sourced within the mount namespace that `in_own_namespace` makes.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

skip() {
  printf '%s\n' "$*"
  exit 77
}

# in_own_namespace SCRIPT ARGUMENT...: begins SCRIPT anew where what it mounts is its own, and what it
# starts ends with it. Returns in there at once.
in_own_namespace() {
  if [[ -n ${FRESH_CLONE_INSIDE:-} ]]; then return; fi
  ((EUID == 0)) || skip "needs root: mounts, and removes packages from a copy of the file system"
  unshare --mount true 2>/dev/null || skip "mount namespaces are not allowed here"
  grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null ||
    skip "the kernel has no overlay file system"
  FRESH_CLONE_INSIDE=1 exec unshare --mount --propagation private --pid --fork --kill-child "$@"
}

# overlay LOWER DIR: DIR/root is LOWER, and what is written there goes to DIR. With /proc, /dev, /sys and
# name look-ups of the host.
overlay() {
  local lower=$1 dir=$2
  mkdir -p "$dir"/{upper,work,root}
  mount -t overlay overlay -o "lowerdir=$lower,upperdir=$dir/upper,workdir=$dir/work" "$dir/root"
  mount -t proc proc "$dir/root/proc"
  mount --rbind /dev "$dir/root/dev"
  mount --rbind /sys "$dir/root/sys"
  # Of a mount point only what lies below it is seen.
  mount -t tmpfs tmpfs "$dir/root/tmp"
}

# sources DIR: what a clone would have, and what is not committed yet.
sources() {
  mkdir -p "$1"
  git -C "$root" -c safe.directory="$root" ls-files -z --cached --others --exclude-standard |
    tar -C "$root" --null --ignore-failed-read -T - -c 2>/dev/null | tar -C "$1" -x
}

# The packages of scripts/setup with that flag; DIR is for what it needs meanwhile.
setup_packages() { # FLAG DIR
  local stubs=$2/no-packages
  mkdir -p "$stubs"
  # Nothing is installed, and nothing can be: the script ends with the list of all.
  printf '#!/bin/sh\nexit 1\n' | tee "$stubs/dpkg-query" >"$stubs/apt-get"
  chmod +x "$stubs"/*
  PATH=$stubs:$PATH "$root/scripts/setup" "$1" 2>&1 | tail -n 1
}

passed=0
failed=0

# expect WHAT LOG PATTERN...: LOG has a line for every pattern; else it is shown.
expect() {
  local what=$1 log=$2 pattern
  shift 2
  for pattern in "$@"; do
    if ! grep -qE -- "$pattern" "$log"; then
      printf '%s: no line matches "%s" in:\n' "$what" "$pattern"
      tail -n 60 "$log"
      failed=$((failed + 1))
      return
    fi
  done
  printf 'as it should be: %s\n' "$what"
  passed=$((passed + 1))
}

finish() {
  printf '%d passed, %d failed\n' "$passed" "$failed"
  ((passed > 0 && failed == 0))
}
