#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Everything that needs a GPU, on a bare machine without a network: builds the library, runs the tests of real NCCL,
# measures allreduce with the plugin and without. It needs cmake, a C compiler and a python3 that has torch with CUDA, and
# pytest for the tests; nothing is installed. What it found is in OUT: summary.txt first, at most eight files.
#
#   tests/gpu/run.sh OUT [--minutes N] [--only build|tests|benchmark] [--sharing auto|mps|slices] [--device cuda|cpu]
#
# --minutes    it ends within this time, with what there is by then (9)
# --sharing    mps: ranks use a GPU at once, by NVIDIA's multi-process service, started here and ended again; slices: in
#              turns, as processes do by default; auto: mps where it works
# --device     cpu: the same jobs and the transports alone on host memory, to try this script without a GPU
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
	OUT='' MINUTES=9 ONLY=all SHARING=auto DEVICE=cuda
	while [ $# -gt 0 ]; do
		case $1 in
		--minutes | --only | --sharing | --device)
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
	cmake -S "$ROOT" -B "$WORK/build" -DBNET_TESTS=OFF && cmake --build "$WORK/build" --parallel
}

start_service() {
	command -v nvidia-cuda-mps-control >/dev/null || return 1
	export CUDA_MPS_PIPE_DIRECTORY=$WORK/mps CUDA_MPS_LOG_DIRECTORY=$WORK/mps-log
	mkdir -p "$CUDA_MPS_PIPE_DIRECTORY" "$CUDA_MPS_LOG_DIRECTORY"
	nvidia-cuda-mps-control -d &&
		timeout 60 python3 -c 'import torch; assert torch.ones(8, device="cuda").sum().item() == 8' && return
	stop_service
	return 1
}

stop_service() {
	[ -n "${CUDA_MPS_PIPE_DIRECTORY:-}" ] || return 0
	echo quit | timeout 20 nvidia-cuda-mps-control
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
tests() {
	local seconds
	seconds=$(left)
	wanted benchmark && seconds=$((seconds * 2 / 3))
	timeout --kill-after=10 "$seconds" python3 -m pytest -p no:cacheprovider --rootdir="$ROOT" -v --durations=15 \
		-k "$DEVICE or not cpu" --junitxml="$OUT/tests.xml" --basetemp="$WORK/pytest" "$ROOT/tests/gpu" >"$OUT/tests.log" 2>&1
}

# What NCCL said in the job of two ranks: which network, by which version of its interface.
keep_nccl_log() {
	local log
	for log in "$WORK"/pytest/collectives-"$DEVICE"-2-plugin*/nccl-0.log; do
		[ -f "$log" ] && grep -v 'Bytes -> Algo' "$log" | head -c 1000000 >"$OUT/nccl.log"
	done
}

run_tests() {
	if ! python3 -c 'import pytest' 2>/dev/null; then
		fail "tests: pytest is not installed"
		return
	fi
	tests || fail "tests: status $? (tests.log)"
	grep -q ' passed' <(tail -n 1 "$OUT/tests.log") || fail "tests: none passed (tests.log)"
	keep_nccl_log
	say "tests: $(last_line "$OUT/tests.log")"
}

run_benchmark() {
	local seconds status=0
	seconds=$(left)
	local more=()
	[ "$DEVICE" = cuda ] || more=(--ranks 2 --max 1M)
	timeout --kill-after=10 $((seconds + 5)) python3 "$ROOT/benchmarks/gpu_allreduce.py" --device "$DEVICE" --seconds "$seconds" \
		"${more[@]}" --output "$OUT/gpu-allreduce.json" >"$OUT/benchmark.log" 2>&1 || status=$?
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
if wanted benchmark; then run_benchmark; fi
say "$([ "$FAILED" = 0 ] && echo "everything ran" || echo "something FAILED")"
exit "$FAILED"
