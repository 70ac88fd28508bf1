#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Everything that needs a GPU, on a bare machine without a network: builds the library, runs the tests of real NCCL,
# measures allreduce with the plugin and without. It needs cmake, a C compiler and a python3 that has torch with CUDA;
# without pytest the same jobs run, and are looked at less closely. Nothing is installed. What it found is in OUT, written
# as it is found: summary.txt first, at most eight files.
#
#   tests/gpu/run.sh OUT [--minutes N] [--only build|tests|benchmark] [--sharing auto|mps|slices] [--device cuda|cpu]
#                        [--build DIR]
#
# --minutes    it ends within this time, with what there is by then (9)
# --sharing    mps: ranks use a GPU at once, by NVIDIA's multi-process service, started here and ended again; slices: in
#              turns, as processes do by default; auto: mps where it works
# --device     cpu: the same jobs and the transports alone on host memory, to try this script without a GPU
# --build      a folder that keeps what was compiled, for another run with the same sources
set -uo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
WORK=$(mktemp -d)
FAILED=0
SECONDS=0

usage() {
	sed -n '/^#   tests/,/^set/s/^# \{0,3\}//p' "$0" | sed '/^set/d' >&2
	exit 2
}

parse() {
	OUT='' MINUTES=9 ONLY=all SHARING=auto DEVICE=cuda BUILD=$WORK/build
	while [ $# -gt 0 ]; do
		case $1 in
		--minutes | --only | --sharing | --device | --build)
			[ $# -ge 2 ] || usage
			printf -v "$(tr a-z A-Z <<<"${1#--}")" %s "$2"
			shift 2
			;;
		-*) usage ;;
		*)
			[ -z "$OUT" ] || usage
			OUT=$1
			shift
			;;
		esac
	done
	[ -n "$OUT" ] && [[ $MINUTES =~ ^[1-9][0-9]*$ ]] && [[ $ONLY =~ ^(all|build|tests|benchmark)$ ]] &&
		[[ $SHARING =~ ^(auto|mps|slices)$ ]] && [[ $DEVICE =~ ^(cuda|cpu)$ ]] || usage
}

say() {
	printf '%4d s  %s\n' "$SECONDS" "$1" | tee -a "$OUT/summary.txt"
}

fail() {
	FAILED=1
	say "FAILED: $1"
}

last_line() {
	grep . "$1" | tail -n 1
}

# Seconds left, of which the last 15 are for the end of this script.
left() {
	local seconds=$((MINUTES * 60 - SECONDS - 15))
	echo $((seconds > 1 ? seconds : 1))
}

wanted() {
	[ "$ONLY" = all ] || [ "$ONLY" = "$1" ]
}

machine() {
	uname -srm
	nproc
	command -v nvidia-smi && nvidia-smi --query-gpu=name,memory.total,driver_version,compute_mode --format=csv,noheader
	python3 -c 'import platform, torch; print("python", platform.python_version(), "torch", torch.__version__)'
	[ "$DEVICE" = cpu ] || python3 -c 'import torch; print("NCCL", torch.cuda.nccl.version())'
	command -v nvidia-cuda-mps-control mpirun all_reduce_perf
}

build() {
	command -v make >/dev/null || export CMAKE_GENERATOR=Ninja
	cmake -S "$ROOT" -B "$BUILD" -DBNET_TESTS=OFF && cmake --build "$BUILD" --parallel
}

start_service() {
	command -v nvidia-cuda-mps-control >/dev/null || return 1
	export CUDA_MPS_PIPE_DIRECTORY=$WORK/mps CUDA_MPS_LOG_DIRECTORY=$WORK/mps-log
	mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
	timeout 20 nvidia-cuda-mps-control -d &&
		timeout 60 python3 -c 'import torch; assert torch.ones(8, device="cuda").sum().item() == 8' && return
	stop_service
	return 1
}

stop_service() {
	[ -n "${CUDA_MPS_PIPE_DIRECTORY:-}" ] || return 0
	local pid=$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid
	echo quit | timeout 20 nvidia-cuda-mps-control || { [ -f "$pid" ] && kill -KILL "$(<"$pid")"; }
	unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}

share() {
	if [ "$DEVICE" = cpu ] || [ "$SHARING" = slices ]; then
		return
	elif start_service >>"$OUT/build.log" 2>&1; then
		say "ranks share a GPU by the multi-process service"
	elif [ "$SHARING" = mps ]; then
		fail "the multi-process service does not start (build.log)"
	else
		say "no multi-process service: ranks share a GPU in time slices"
	fi
}

# Of the time that is left, two thirds, where the benchmark is still to come.
for_tests() {
	local seconds
	seconds=$(left)
	wanted benchmark && seconds=$((seconds * 2 / 3))
	echo "$seconds"
}

# What is not over in time is interrupted, so that pytest says what it has found until then.
tests() {
	if ! python3 -c 'import pytest' 2>/dev/null; then
		timeout --signal=INT --kill-after=10 "$(($1 + 10))" env "PYTHONPATH=$ROOT:$PYTHONPATH" \
			python3 -m tests.gpu.gpu_jobs "$OUT/jobs.jsonl" "$WORK/jobs" --device "$DEVICE" --seconds "$1"
		return
	fi
	timeout --signal=INT --kill-after=10 "$1" python3 -m pytest -p no:cacheprovider --rootdir="$ROOT" -v --durations=15 \
		--tier nightly -k "$DEVICE or not cpu" --jobs-file="$OUT/jobs.jsonl" --basetemp="$WORK/jobs" "$ROOT/tests/gpu"
}

# What NCCL said in the job of two ranks: which network, by which version of its interface.
keep_nccl_log() {
	local log
	for log in "$WORK"/jobs/collectives-"$DEVICE"-2-plugin*/nccl-0.log; do
		[ -f "$log" ] && grep -v 'Bytes -> Algo' "$log" | head -c 1000000 >"$OUT/nccl.log"
	done
}

run_tests() {
	tests "$(for_tests)" >"$OUT/tests.log" 2>&1 || fail "tests: status $? (tests.log)"
	grep -qE '(^|[^0-9])[1-9][0-9]* passed' <(tail -n 1 "$OUT/tests.log") || fail "tests: none passed (tests.log)"
	keep_nccl_log
	say "tests: $(last_line "$OUT/tests.log")"
}

# Processes that were killed in the middle of a kernel may have left the service in a state that hangs those to come.
share_anew() {
	if [ "$FAILED" = 1 ] && [ -n "${CUDA_MPS_PIPE_DIRECTORY:-}" ]; then
		stop_service >>"$OUT/build.log" 2>&1
		share
	fi
}

run_benchmark() {
	local seconds status=0
	seconds=$(left)
	local more=()
	[ "$DEVICE" = cuda ] || more=(--ranks 2 --max 1M)
	timeout --kill-after=10 $((seconds + 5)) env "PYTHONPATH=$ROOT:$PYTHONPATH" python3 -m benchmarks gpu \
		--device "$DEVICE" --seconds "$seconds" "${more[@]}" --output "$OUT/gpu-allreduce.jsonl" >"$OUT/benchmark.log" 2>&1 || status=$?
	[ "$status" = 0 ] || fail "benchmark: status $status (benchmark.log)"
	say "benchmark: $(last_line "$OUT/benchmark.log")"
}

finish() {
	stop_service >/dev/null 2>&1
	rm -rf "$WORK" "$OUT"/*.tmp
}

parse "$@"
mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd) || exit 2
: >"$OUT/summary.txt"
trap finish EXIT
export PYTHONPATH=$ROOT/python${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

machine >>"$OUT/summary.txt" 2>&1
if ! build >"$OUT/build.log" 2>&1; then
	fail "build (build.log)"
	exit 1
fi
say "built"
share
if wanted tests; then run_tests; fi
if wanted benchmark; then
	share_anew
	run_benchmark
fi
say "$([ "$FAILED" = 0 ] && echo "everything ran" || echo "something FAILED")"
exit "$FAILED"
