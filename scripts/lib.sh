# Shared by the scripts: the root of the repository, and stages that are timed and counted.
#
# A stage is one command, of whose output the lines that begin with "skipped: " are shown. When the
# last line of it that looks like "12 passed, 0 failed" exists, these are its counts; else it counts
# nothing when it succeeds. A stage that exits non-zero counts as at least one failed.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1

stage_logs=$root/build/logs
total_passed=0
total_failed=0
total_skipped=0
count_pattern='^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$'

counts() { # passed failed skipped
  local line="$1 passed, $2 failed"
  if (($3 > 0)); then line+=", $3 skipped"; fi
  printf '%s\n' "$line"
}

# stage NAME COMMAND...: returns 0 when nothing failed.
stage() {
  local name=$1 log rc=0 start line passed=0 failed=0 skipped=0
  shift
  mkdir -p "$stage_logs"
  log=$stage_logs/${name//[^a-zA-Z0-9]/-}.log
  start=$SECONDS
  printf '== %s\n' "$name"
  ("$@") >"$log" 2>&1 </dev/null || rc=$?
  line=$(grep -E "$count_pattern" "$log" | tail -n 1 || true)
  if [[ -n $line ]]; then
    read -r passed failed skipped < <(sed -E 's/[^0-9]+/ /g' <<<"$line")
    skipped=${skipped:-0}
  fi
  if ((rc != 0 && failed == 0)); then failed=1; fi
  if ((failed > 0)); then
    tail -n 300 "$log"
    printf '(the whole output: %s)\n' "${log#"$root"/}"
  fi
  printf '   %s: %d s, %s\n' "$name" $((SECONDS - start)) "$(counts "$passed" "$failed" "$skipped")"
  grep '^skipped: ' "$log" | sed 's/^/   /' || true
  total_passed=$((total_passed + passed))
  total_failed=$((total_failed + failed))
  total_skipped=$((total_skipped + skipped))
  ((failed == 0))
}

# The last line, and the exit status that goes with it.
finish() {
  counts "$total_passed" "$total_failed" "$total_skipped"
  ((total_failed == 0))
}
