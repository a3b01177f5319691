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
all_failures=
stage_log=
count_pattern='^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$'

counts() { # passed failed skipped
  local line="$1 passed, $2 failed"
  if (($3 > 0)); then line+=", $3 skipped"; fi
  printf '%s\n' "$line"
}

# Of the output of GoogleTest, pytest, ctest, the sanitizers and scripts/check: what failed, and why.
failures() { # LOG
  awk '
    /^\[  FAILED  \] .* \([0-9]+ ms\)$/ || /^(FAILED|ERROR) / || / FAILED$/ ||
    /^\t *[0-9]+ - .* \(.*\)$/ || /: exit status [0-9]+$/ || /: stopped after [0-9]+ s$/ { print; next }
    /: Failure$/ || /ERROR: [A-Za-z]*Sanitizer/ || /WARNING: ThreadSanitizer/ || /: runtime error: / ||
    /: (fatal )?error: / { lines = 8 }
    lines > 0 && !/^$/ { print; --lines }
    /^$/ { lines = 0 }' "$1" | awk '!seen[$0]++' | head -n 60
}

# stage NAME COMMAND...: returns 0 when nothing failed. Its output is in $stage_log.
stage() {
  local name=$1 rc=0 start line passed=0 failed=0 skipped=0
  shift
  mkdir -p "$stage_logs"
  stage_log=$stage_logs/${name//[^a-zA-Z0-9]/-}.log
  start=$SECONDS
  printf '== %s\n' "$name"
  ("$@") >"$stage_log" 2>&1 </dev/null || rc=$?
  line=$(grep -E "$count_pattern" "$stage_log" | tail -n 1 || true)
  if [[ -n $line ]]; then
    read -r passed failed skipped < <(sed -E 's/[^0-9]+/ /g' <<<"$line")
    skipped=${skipped:-0}
  fi
  if ((rc != 0 && failed == 0)); then failed=1; fi
  if ((failed > 0)); then
    tail -n 300 "$stage_log"
    printf '(the whole output: %s)\n' "${stage_log#"$root"/}"
    all_failures+=$(printf '\n-- %s' "$name"; echo; failures "$stage_log")
  fi
  printf '   %s: %d s, %s\n' "$name" $((SECONDS - start)) "$(counts "$passed" "$failed" "$skipped")"
  grep '^skipped: ' "$stage_log" | sed 's/^/   /' || true
  total_passed=$((total_passed + passed))
  total_failed=$((total_failed + failed))
  total_skipped=$((total_skipped + skipped))
  ((failed == 0))
}

# What failed, once more and in short; the last line; and the exit status that goes with it.
finish() {
  if [[ -n $all_failures ]]; then printf '== what failed%s\n' "$all_failures"; fi
  counts "$total_passed" "$total_failed" "$total_skipped"
  ((total_failed == 0))
}
