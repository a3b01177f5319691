#!/usr/bin/env bash
# scripts/test lets scripts/setup speak: what it installs is on the terminal, where sudo may ask
# too, and not in a log. Everything it would run is a stub that does nothing.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/bin"
cp -R "$root/scripts" "$scratch/scripts"

stub() { # NAME LINE
  printf '#!/bin/bash\n%s\n' "$2" >"$scratch/bin/$1"
  chmod +x "$scratch/bin/$1"
}
stub dpkg-query 'exit 1'
stub apt-get 'exit 0'
stub cmake 'exit 1'
# Asks as the real one does: it needs the input that the user has.
# shellcheck disable=SC2016
stub sudo 'while [[ $1 == --* ]]; do shift; done; exec "$@"'

# What scripts/setup does with its input is seen in its place: it says what it reads.
cat >>"$scratch/scripts/setup" <<'END'
read -r answer
echo "setup has read: $answer"
END
out=$(PATH=$scratch/bin:$PATH "$scratch/scripts/test" <<<"password" 2>&1) && exit 1
for line in 'setup: .*install.*cmake' '^setup has read: password$' '^0 passed, 1 failed$'; do
  grep -qE "$line" <<<"$out" || {
    printf 'no line "%s" in:\n%s\n' "$line" "$out" >&2
    exit 1
  }
done
