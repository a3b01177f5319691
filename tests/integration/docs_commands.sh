#!/usr/bin/env bash
# Runs the `kvxfer` commands in the code blocks of README.md, docs and examples. Each must succeed;
# `kvxfer doctor` may also find a problem of this host (status 1).
#
# The options of these commands are parsed (--parse-only), but the commands are not run:
# - a line with a comment that says "needs ..." or "takes long": "# needs an RDMA port",
# - a line that names GPU memory ("cuda") or another host ("HOST"),
# - `kvxfer serve`, which does not end by itself.
# Lines of one block run in the same folder, in their order. `kvxfer plot` belongs to the Python
# package.
#
# Also: each option that the pages of the program name is an option of the program.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
program=$KVXFER
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for name in "${!KVXFER_@}"; do unset "$name"; done

mkdir "$scratch/run" "$scratch/parse"
ln -s "$program" "$scratch/run/kvxfer"
printf '#!/bin/bash\nexec "%s" --parse-only "$@"\n' "$program" >"$scratch/parse/kvxfer"
chmod +x "$scratch/parse/kvxfer"

cd "$root"
pages=(README.md docs/*.md examples/*/README.md)

# Prints "page:line:block:command" for each command; joins lines that end with a backslash.
commands() {
  awk '
    FNR == 1 { inside = 0; joined = "" }
    /^ *```/ { inside = !inside; if (inside) block++; next }
    !inside { next }
    joined == "" { line = FNR }
    /\\$/ { joined = joined substr($0, 1, length($0) - 1); next }
    {
      text = joined $0
      joined = ""
      sub(/^ *\$ /, "", text)
      if (text ~ /(^|[;&|(] *|^([A-Z_]+=[^ ]* )+)kvxfer [a-z-]/ && text !~ /kvxfer plot/) {
        print FILENAME ":" line ":" block ":" text
      }
    }' "${pages[@]}"
}

# How a command may end.
is_ok() { # STATUS COMMAND
  [[ $1 == 0 || ($1 == 1 && $2 == *"kvxfer doctor"*) ]]
}

count=0
failed=0
while IFS=: read -r page line block command; do
  count=$((count + 1))
  how=run
  if [[ $command =~ \#.*(needs |takes long) || $command == *cuda* || $command == *HOST* ||
    $command == *"kvxfer serve"* ]]; then
    how=parse
  fi
  mkdir -p "$scratch/block-$block"
  status=0
  out=$(cd "$scratch/block-$block" && ln -sfn "$root/benchmarks" benchmarks &&
    PATH=$scratch/$how:$PATH timeout 60 bash -c "$command" 2>&1 </dev/null) || status=$?
  is_ok "$status" "$command" && continue
  failed=$((failed + 1))
  printf '%s:%s: %s ended with %s (%s)\n%s\n' "$page" "$line" "$command" "$status" "$how" \
    "$(tail -n 5 <<<"$out")" >&2
done < <(commands)

# Without roff's fonts and escaped hyphens.
known=$("$program" man | sed 's/\\f[BIR]//g; s/\\-/-/g')
for page in docs/cli.md docs/bench.md docs/doctor.md; do
  while read -r option; do
    case $option in
      --kind | --out) continue ;; # of `kvxfer plot`
    esac
    grep -qE -- "$option([^a-z_-]|$)" <<<"$known" && continue
    failed=$((failed + 1))
    printf '%s: no subcommand has the option %s\n' "$page" "$option" >&2
  done < <(grep -oE -- '--[a-z][a-z_-]+[a-z]' "$page" | sort -u)
done

echo "$count commands of ${#pages[@]} pages, $failed failed"
((count >= 30 && failed == 0))
