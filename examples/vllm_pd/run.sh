#!/usr/bin/env bash
# Prefill and decode instances of vLLM and the proxy, all on this machine.
#
#   run.sh --model MODEL [OPTION...] [-- ARGUMENT OF vllm serve...]
#
#   --prefill N       prefill instances (1)        --tp-prefill N    GPUs of each of them (1)
#   --decode M        decode instances (1)         --tp-decode N     GPUs of each of them (1)
#   --mode pull|push  who moves the KV cache (pull)
#   --port PORT       of the proxy (8000); prefill from PORT+100 on, decode from PORT+200 on
#   --logs FOLDER     one log for each process (a new folder below /tmp)
#
# Needs `vllm` and, in the same environment, kvxfer. Ctrl-C ends all of it.
#
#   KVXFER_CPU=1      vLLM's build for CPUs: the cores are shared out, VLLM_CPU_KVCACHE_SPACE is 1 (GB)
#   KVXFER_PYTHON     for the proxy (python3)
#   KVXFER_WAIT       seconds for the models to load (1200)
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)

say() { printf 'run.sh: %s\n' "$*" >&2; }
die() {
  say "$*"
  exit 2
}
usage() {
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
  exit 2
}

model='' prefills=1 decodes=1 tp_prefill=1 tp_decode=1 mode=pull port=8000 logs=''
while (($# > 0)) && [[ $1 != -- ]]; do
  if [[ $1 == -h || $1 == --help ]]; then usage; fi
  if (($# < 2)); then die "$1 needs a value"; fi
  case $1 in
    --model) model=$2 ;;
    --prefill) prefills=$2 ;;
    --decode) decodes=$2 ;;
    --tp-prefill) tp_prefill=$2 ;;
    --tp-decode) tp_decode=$2 ;;
    --mode) mode=$2 ;;
    --port) port=$2 ;;
    --logs) logs=$2 ;;
    *) usage ;;
  esac
  shift 2
done
if (($# > 0)); then shift; fi
serve_arguments=("$@")

[[ -n $model ]] || usage
[[ $mode == pull || $mode == push ]] || die "--mode is $mode, not pull or push"
for number in "$prefills" "$decodes" "$tp_prefill" "$tp_decode" "$port"; do
  [[ $number =~ ^[1-9][0-9]*$ ]] || die "$number is no number above 0"
done
for program in vllm curl "${KVXFER_PYTHON:-python3}"; do
  command -v "$program" >/dev/null || die "there is no $program in PATH"
done
logs=${logs:-$(mktemp -d /tmp/vllm_pd.XXXXXX)}
mkdir -p "$logs"

# --- who gets which GPUs, or cores ---

devices=()
wanted=$((prefills * tp_prefill + decodes * tp_decode))

find_gpus() {
  if [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then
    IFS=, read -ra devices <<<"$CUDA_VISIBLE_DEVICES"
  else
    mapfile -t devices < <(nvidia-smi --query-gpu=index --format=csv,noheader)
  fi
  ((${#devices[@]} >= wanted)) ||
    die "$wanted GPUs are needed, there are ${#devices[@]} (KVXFER_CPU=1 is for vLLM's CPU build)"
}

# Instances that share a core wait for each other at every step: each rank gets its own.
find_cores() {
  local cores each rank
  mapfile -t cores < <("${KVXFER_PYTHON:-python3}" -c \
    'import os; print(*sorted(os.sched_getaffinity(0)), sep="\n")')
  each=$((${#cores[@]} / wanted))
  if ((each == 0)); then
    say "$wanted ranks share ${#cores[@]} cores: this will be slow"
    each=1
  fi
  for ((rank = 0; rank < wanted; rank++)); do
    devices+=("$(IFS=, && echo "${cores[*]:(rank * each) % ${#cores[@]}:each}")")
  done
  serve_arguments=(--block-size 32 "${serve_arguments[@]}")
  export VLLM_CPU_KVCACHE_SPACE=${VLLM_CPU_KVCACHE_SPACE:-1}
}

if [[ ${KVXFER_CPU:-} == 1 ]]; then find_cores; else find_gpus; fi

# --- processes ---

names=() pids=() urls=()

start() { # NAME COMMAND...
  local name=$1
  shift
  "$@" >"$logs/$name.log" 2>&1 </dev/null &
  names+=("$name") pids+=($!)
}

# A process that does not end in time takes its workers with it: each leads a group of its own.
# shellcheck disable=SC2317  # by a trap
end_all() {
  local pid end=$((SECONDS + 40))
  trap '' INT TERM
  for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do
    while kill -0 "$pid" 2>/dev/null && ((SECONDS < end)); do sleep 0.2; done
    kill -KILL -- "-$pid" 2>/dev/null || true
  done
}

first_device=0
serve() { # NAME ROLE TP PORT
  local mine=("${devices[@]:first_device:$3}") bind=()
  first_device=$((first_device + $3))
  if [[ ${KVXFER_CPU:-} == 1 ]]; then
    bind=(VLLM_CPU_OMP_THREADS_BIND="$(IFS='|' && echo "${mine[*]}")")
  else
    bind=(CUDA_VISIBLE_DEVICES="$(IFS=, && echo "${mine[*]}")")
  fi
  local transfer='{"kv_connector": "KvxferConnector", "kv_connector_module_path": "kvxfer.vllm",
    "kv_role": "'$2'", "kv_load_failure_policy": "recompute",
    "kv_connector_extra_config": {"mode": "'$mode'"}}'
  start "$1" env "${bind[@]}" VLLM_HOST_IP="${VLLM_HOST_IP:-127.0.0.1}" \
    vllm serve "$model" --host 127.0.0.1 --port "$4" --tensor-parallel-size "$3" \
    --kv-transfer-config "$transfer" "${serve_arguments[@]}"
  urls+=("http://127.0.0.1:$4")
}

# Says once of each process that it has ended.
all_run() {
  local index rc=0
  for index in "${!pids[@]}"; do
    if ! kill -0 "${pids[index]}" 2>/dev/null; then
      say "${names[index]} has ended; the end of $logs/${names[index]}.log:"
      tail -n 20 "$logs/${names[index]}.log" >&2
      unset "pids[index]"
      rc=1
    fi
  done
  return "$rc"
}

wait_until_up() { # URL...
  local url end=$((SECONDS + ${KVXFER_WAIT:-1200}))
  for url in "$@"; do
    until curl -fsS -m 5 -o /dev/null "$url/health" 2>/dev/null; do
      all_run
      ((SECONDS < end)) || die "$url is not up after ${KVXFER_WAIT:-1200} s; see $logs"
      sleep 1
    done
  done
}

set -m # a process group for each: Ctrl-C is for this script alone, which ends them in order
trap end_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say "logs are in $logs"
for ((n = 0; n < prefills; n++)); do
  serve "prefill-$n" kv_producer "$tp_prefill" $((port + 100 + n))
done
for ((n = 0; n < decodes; n++)); do
  serve "decode-$n" kv_consumer "$tp_decode" $((port + 200 + n))
done
wait_until_up "${urls[@]}"
start proxy "${KVXFER_PYTHON:-python3}" "$here/proxy.py" --mode "$mode" --port "$port" \
  --prefill "${urls[@]:0:prefills}" --decode "${urls[@]:prefills}"
wait_until_up "http://127.0.0.1:$port"

cat <<END
All are up. For example:

  curl -sN http://127.0.0.1:$port/v1/completions -H 'Content-Type: application/json' \\
    -d '{"model": "$model", "prompt": "San Francisco is a", "max_tokens": 20, "stream": true}'

Ctrl-C ends them.
END
# The others go on where an instance ends: that is what more than one is for.
proxy=${pids[-1]}
while kill -0 "$proxy" 2>/dev/null; do
  all_run || true
  sleep 2
done
exit 1
