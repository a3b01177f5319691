#!/usr/bin/env bash
# Shows that the protocol's tests notice when the protocol is broken: each mutant of list.sh is
# applied to a copy of the sources, built, and must make a test fail. Prints which; fails if one
# survives. Product code knows nothing of this.
#   tests/mutants/run.sh [--check | --quick] [words of a name or file]
# --check: only whether each mutant still fits its file. --quick: the first test that notices is enough.
# CXX and KVXFER_TEST_SEED as usual.
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
mode=all
case ${1:-} in --check | --quick) mode=${1#--} && shift ;; esac
only=${1:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags="-std=c++20 -O1 -I$work/include -I$work -I$root/include -I$root"
libs="$(pkg-config --libs absl_status absl_statusor absl_strings libcrypto) -lgtest -lgtest_main -lxxhash -lpthread"
compiler=${CXX:-g++}
command -v ccache >/dev/null && compiler="ccache $compiler"
linker=
command -v mold >/dev/null && linker=-fuse-ld=mold

units="lane_book send_book slot_pool slot_table reliable_channel arrival_tracker rail_fences send_tracker send_transfer send_end send_state session handshake handshake_budget target_session frame_watch peer_watch"
sources="$(cd "$root" && echo tests/unit/core/protocol/protocol_model*.cc) tests/support/scale.cc src/core/base/text.cc src/core/base/types.cc src/core/base/own_fd.cc src/core/base/random.cc src/core/base/signing_key.cc src/core/protocol/id_set.cc src/core/protocol/send_tracker_end.cc src/core/plan/slice_set.cc src/core/protocol/wire_format.cc"
for unit in $units; do sources+=" src/core/protocol/$unit.cc tests/unit/core/protocol/${unit}_test.cc"; done
for unit in send_credit slot_supply suspect_ops; do sources+=" tests/unit/core/protocol/${unit}_test.cc"; done
sources+=" tests/unit/core/protocol/arrival_tracker_exhaustive_test.cc tests/unit/core/protocol/arrival_tracker_random_test.cc tests/unit/core/protocol/session_pair_test.cc"

object() { echo "$work/$(echo "$1" | tr / _).o"; }
compile() { $compiler $flags -c "$1" -o "$2"; }
link() {  # link <where the objects lie first>
  local objects=() source
  for source in $sources; do
    local name; name=$(basename "$(object "$source")")
    if [ -e "$1/$name" ]; then objects+=("$1/$name"); else objects+=("$work/$name"); fi
  done
  ${CXX:-g++} $linker "${objects[@]}" -o "$1/tests" $libs
}
# run <program> <filter>: prints the first failed test, or nothing.
run() {
  local out status=0
  out=$(timeout 120 "$1" --gtest_filter="$2" --gtest_fail_fast 2>&1) || status=$?
  [ $status -eq 0 ] && return
  local name; name=$(grep -m1 -oP '^\[  FAILED  \] \K[A-Za-z/]+\.[A-Za-z]+' <<<"$out" || true)
  [ $status -eq 124 ] && name="time-out"
  echo "${name:-crash}"
}

if [ $mode != check ]; then
  for source in $sources; do compile "$root/$source" "$(object "$source")"; done
  mkdir "$work/plain"
  link "$work/plain"
  [ -z "$(run "$work/plain/tests" '-*Soak*:*Random*')" ] || { echo "the tests fail without a mutant"; exit 2; }
fi

total=0 survivors=0
[ $mode = check ] || printf '| mutant | killed by |\n|---|---|\n'
mutant() {
  local name=$1 file=$2 copy="$work/mutant" source
  [[ "$name $file" == *"$only"* ]] || return 0
  shift 2
  rm -rf "$copy" && mkdir -p "$copy/source"
  python3 - "$root/$file" "$copy/source/$(basename "$file")" "$@" <<'PY'
import sys
source, target, *pairs = sys.argv[1:]
text = open(source).read()
for old, new in zip(pairs[::2], pairs[1::2]):
    if text.count(old) != 1:
        sys.exit(f"{source}: {old!r} occurs {text.count(old)} times; bring list.sh up to date")
    text = text.replace(old, new)
open(target, "w").write(text)
PY
  total=$((total + 1))
  [ $mode != check ] || return 0
  case $file in
    *.cc) compile "$copy/source/$(basename "$file")" "$copy/$(basename "$(object "$file")")" ;;
    *.h)  # compiles what includes it
      mkdir -p "$(dirname "$work/include/$file")"
      cp "$copy/source/$(basename "$file")" "$work/include/$file"
      for source in $sources; do
        ${CXX:-g++} $flags -MM "$root/$source" | grep -q "/$file" || continue
        # ccache would not look at a header that lies before the one that it knows.
        CCACHE_DISABLE=1 compile "$root/$source" "$copy/$(basename "$(object "$source")")"
      done
      rm "$work/include/$file"
      ;;
  esac
  link "$copy"
  local killers=() killer filter
  # The rules by example, every small world, and, where neither notices, random schedules.
  for filter in '-*Exhaustive*:*Random*' '*Exhaustive.*' '*Random*'; do
    [ ${#killers[@]} -gt 0 ] && { [ "$filter" = '*Random*' ] || [ $mode = quick ]; } && break
    killer=$(run "$copy/tests" "$filter")
    [ -n "$killer" ] && killers+=("$killer")
  done
  [ ${#killers[@]} -eq 0 ] && survivors=$((survivors + 1)) && killers=("**survived**")
  local list; list=$(printf ', %s' "${killers[@]}")
  echo "| $name | ${list:2} |"
}
source "$root/tests/mutants/list.sh"
[ $mode = check ] && exit
echo
echo "$total mutants, $survivors survived"
[ "$survivors" -eq 0 ]
