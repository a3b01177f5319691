#!/usr/bin/env bash
# scripts/run-gtest and scripts/test tell why a case was skipped, in one line each.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

expect() { # what wanted got
  [[ $2 == "$3" ]] && return
  printf '%s: expected\n%s\ngot\n%s\n' "$1" "$2" "$3" >&2
  exit 1
}

# Stands for a GoogleTest program.
cat >"$out/program" <<'END'
#!/usr/bin/env bash
for argument in "$@"; do [[ $argument == --gtest_output=xml:* ]] && xml=${argument#*xml:}; done
cat >"$xml" <<'XML'
<testsuites tests="4" failures="0" disabled="1" errors="0" time="0" name="AllTests">
    <testcase name="Root" status="run" result="skipped" time="0" classname="Some">
      <skipped message="/a/b.cc:2&#x0A;needs &lt;root&gt; &amp; &quot;more&quot;&#x0A;of it"><![CDATA[x]]></skipped>
    </testcase>
    <testcase name="Mute" status="run" result="skipped" time="0" classname="Some">
      <skipped message="/a/b.cc:3&#x0A;"><![CDATA[]]></skipped>
    </testcase>
    <testcase name="DISABLED_Old" status="notrun" result="suppressed" time="0" classname="Some" />
    <testcase name="Fine" status="run" result="completed" time="0" classname="Some" />
</testsuites>
XML
END
chmod +x "$out/program"
CI='' "$root/scripts/run-gtest" "$out/results" some.0 10 "$out/program" >/dev/null
expect skips 'Some.Root: needs <root> & "more" of it
Some.Mute: no reason given
Some.DISABLED_Old: disabled' "$(<"$out/results/some.0.skips")"
expect counts '1 0 3' "$(<"$out/results/some.0.count")"
if CI=true "$root/scripts/run-gtest" "$out/results" some.0 10 "$out/program" >/dev/null; then
  echo 'a skipped case passes in CI' >&2
  exit 1
fi
expect 'counts in CI' '1 3 0' "$(<"$out/results/some.0.count")"

# Of a script that ended with status 77 it is the last line that it wrote.
cat >"$out/junit.xml" <<'XML'
	<testcase name="other" classname="other" time="0" status="run">
		<system-out>passed
</system-out>
	</testcase>
	<testcase name="some.script" classname="some.script" time="0" status="notrun">
		<skipped message="SKIP_RETURN_CODE=77"/>
		<system-out>looking
no such program here
</system-out>
	</testcase>
XML
eval "$(sed -n '/^script_skip_reason()/,/^}/p' "$root/scripts/test")"
expect script 'no such program here' "$(script_skip_reason "$out/junit.xml" some.script)"
