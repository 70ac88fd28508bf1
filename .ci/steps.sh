# SPDX-License-Identifier: MIT
# shellcheck shell=bash
#
# What .ci/run and .ci/nightly share: a clean tree, packages, environments, and a function for each step. Everything is
# made in build-ci/, and in build-tests-*/ of the clean tree, where the tests themselves build.

readonly BUILD=$PWD/build-ci
readonly TREE=$BUILD/tree
readonly PASSED=$BUILD/passed # tests, in the bare environment
readonly WHEEL_LIMIT=1000000 # bytes
# C tests of what a kernel or a machine may lack: real-time scheduling, two processors, congestion controls, IPv6.
readonly MAY_SKIP='test_yield|test_request|test_congestion|test_sampler|test_device_scope'
# All that the README asks of a machine.
readonly BARE_PACKAGES=(gcc libc6-dev git ca-certificates python3 python3-venv)
readonly PACKAGES=(
	g++ clang-14 libclang-rt-14-dev clang-format-14 ccache binutils
	python3-dev # with g++: torch.compile generates C++
	iproute2 nftables procps util-linux patch fish groff-base
)

fail() {
	printf '%s: %s\n' "$0" "$1" >&2
	exit 1
}

# ---- a run ----

step() {
	end_step
	STEP=$1 STEP_BEGAN=$SECONDS
	printf '\n== %s (after %d s)\n' "$STEP" "$SECONDS"
}

end_step() {
	[ -z "${STEP:-}" ] || printf '%6d s  %s\n' "$((SECONDS - STEP_BEGAN))" "$STEP" >>"$BUILD/steps"
	STEP=
}

report() {
	local status=$?
	end_step
	[ ! -f "$BUILD/steps" ] || { printf '\n' && cat "$BUILD/steps"; }
	printf '%s: %s after %d s\n' "$0" "$([ "$status" = 0 ] && echo passed || echo FAILED)" "$SECONDS"
}

# The run gets a PID namespace, a /run/netns and a /dev/shm of its own: what is left of processes, network namespaces and
# shared memory ends with it. A container's /dev/shm has room for one rank of NCCL.
own_namespaces() {
	if [ -z "${BNET_CI_INSIDE:-}" ]; then
		BNET_CI_INSIDE=1 unshare --mount --pid --fork --kill-child --mount-proc "$PWD/.ci/${0##*/}" "$@" &
		# unshare(1) ignores SIGTERM and SIGINT; its child ends with it.
		trap 'kill -KILL '$!'; fail "ended by a signal"' INT TERM
		wait $!
		exit
	fi
	mkdir -p /run/netns
	mount -t tmpfs none /run/netns
	mount -t tmpfs -o mode=1777,nosuid,nodev none /dev/shm
}

# What is checked is what is committed, in a clone.
clean_tree() {
	[ -z "$(git status --porcelain)" ] || echo "not committed, and therefore not part of this run:" "$(git status --short)"
	rm -rf "$BUILD"
	mkdir "$BUILD"
	git -c advice.detachedHead=false clone --quiet . "$TREE"
	enter_tree
}

enter_tree() {
	cd "$TREE" || exit
	trap report EXIT
	trap 'exit 1' INT TERM # else the report would be of the last command that ended
}

install_packages() {
	export DEBIAN_FRONTEND=noninteractive
	apt-get -qq update
	apt-get -qq install --yes --no-install-recommends "$@" >/dev/null
}

# ---- a new user ----

# block_of LINE: the block of README.md that contains the line.
block_of() {
	awk -v line="$1" '/^```/ { block = ""; found = 0; next } { block = block $0 "\n" } $0 == line { found = 1 }
		found { printed = block } END { printf "%s", printed }' README.md
}

# Runs the README's block that ends with this line, in the environment .venv where an earlier block has made it.
as_in_readme() {
	local block
	block=$(block_of "$1")
	[ "$(tail -n 1 <<<"$block")" = "$1" ] || fail "no block of README.md ends with the line: $1"
	sed 's/^/$ /' <<<"$block"
	bash -ec "[ ! -e .venv ] || . .venv/bin/activate; $block"
}

# The README's two commands, in an environment that contains nothing else.
bare() {
	step "bare environment: the README's first command"
	as_in_readme "python3 -m pip install . && bagua-net bench" || return
	step "bare environment: the README's test command"
	PYTEST_ADDOPTS="--record-passed=$PASSED" as_in_readme "python3 -m pip install '.[test]' && pytest"
}

# ---- the environment of all other steps ----

# All but the package, which is built in the tree: another installation may do that at the same time.
make_environment() {
	local python=$BUILD/venv/bin/python3
	# torch's CPU build: others bring gigabytes of CUDA. torch's own index has it where the usual ones have not.
	python3 -m venv "$BUILD/venv" &&
		{ "$python" -m pip install --quiet 'torch==2.13.0+cpu' ||
			"$python" -m pip install --quiet --index-url https://download.pytorch.org/whl/cpu 'torch==2.13.0+cpu'; } &&
		"$python" -m pip install --quiet -r .ci/requirements.txt
}

use_environment() {
	# shellcheck disable=SC1091
	. "$BUILD/venv/bin/activate"
	export CMAKE_GENERATOR=Ninja CMAKE_C_COMPILER_LAUNCHER=ccache
	python3 -m pip install --quiet '.[test]'
}

# ---- steps ----

lint() {
	ruff check .
	ruff format --check .
	mypy --strict
	git ls-files '*.c' '*.h' | xargs clang-format-14 --dry-run --Werror
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict
}

# check_exports LIBRARY PATTERN: its symbols match the pattern, and it needs only libc, none of whose functions is newer
# than glibc 2.17: those of 2.32 to 2.34 are old ones that were moved. They are left in $BUILD/exports.
check_exports() {
	nm -D --defined-only "$1" | awk '{ print $3 }' | sort >"$BUILD/exports"
	readelf -d "$1" | grep NEEDED >"$BUILD/needed"
	if [ ! -s "$BUILD/exports" ] || grep -vxE "$2" "$BUILD/exports"; then
		fail "$1 exports what it must not, or nothing"
	fi
	if grep -vE '\[(libc|libpthread|libdl|ld-linux-[a-z0-9-]+)\.so' "$BUILD/needed"; then
		fail "$1 needs more than libc"
	fi
	if nm -D --undefined-only "$1" | grep -E '@GLIBC_2\.(1[89]|2[0-9]|3[015-9]|[4-9][0-9])$'; then
		fail "$1 needs a glibc later than 2.17"
	fi
}

# The published wheel: three small libraries for every Python, without unneeded symbols or dependencies.
check_wheel() {
	local library wheel
	python3 -m pip wheel --quiet --no-deps --wheel-dir "$BUILD/wheel" .
	wheel=$(ls "$BUILD"/wheel/bagua_net-*-py3-none-*.whl)
	echo "$wheel: $(stat -c %s "$wheel") bytes"
	[ "$(stat -c %s "$wheel")" -lt "$WHEEL_LIMIT" ] || fail "the wheel has $WHEEL_LIMIT bytes or more"
	python3 -m zipfile -e "$wheel" "$BUILD/unpacked"
	compgen -G "$BUILD/unpacked/*.data/data/share/man/man1/bagua-net.1" >/dev/null || fail "the wheel has no manual page"
	check_exports "$BUILD/unpacked/bagua_net/lib/libbagua-net-emulator.so" 'emu_[a-z_]+'
	check_exports "$BUILD/unpacked/bagua_net/lib/libbagua-net-host.so" 'bnet_[a-z0-9_]+'
	library=$BUILD/unpacked/bagua_net/lib/libnccl-net-bagua.so
	check_exports "$library" 'ncclNetPlugin_v([4-9]|1[0-2])|bnet_[a-z0-9_]+'
	[ "$(grep -c '^ncclNetPlugin_v' "$BUILD/exports")" = 9 ] || fail "the library does not export v4 to v12"
	readelf -d "$library" >"$BUILD/dynamic"
	grep -qF 'soname: [libnccl-net-bagua.so]' "$BUILD/dynamic" || fail "the SONAME is not the file's name"
	if grep '^Requires-Dist:' "$BUILD"/unpacked/*.dist-info/METADATA | grep -vE 'extra ==|: (cffi|typer|rich)\b'; then
		fail "the package needs more than cffi, typer and rich"
	fi
	echo "$(wc -l <"$BUILD/exports") exported symbols, needs $(grep NEEDED "$BUILD/dynamic" | grep -o '\[.*\]' | xargs)"
}

# c_build DIRECTORY COMPILER [-DOPTION=VALUE ...]: as tests/support/drivers.py does, which finds it and builds no other.
c_build() {
	cmake -S . -B "$1" -DCMAKE_C_COMPILER="$2" -DBNET_WERROR=ON -DSKBUILD=ON -DSKBUILD_STATE=wheel "${@:3}" \
		>/dev/null || return
	# C_TARGETS: these alone. The log has a name of its own, as two builds may run at a time.
	if ! cmake --build "$1" --target "${C_TARGETS:-all}" >"$BUILD/${1##*/}.compile" 2>&1; then
		cat "$BUILD/${1##*/}.compile"
		return 1
	fi
}

# ThreadSanitizer needs an address space layout that a kernel with high ASLR entropy does not leave it. The tests wait
# for each other's threads: four at a time on two processors take three quarters of the time of two (96 s, 128 s).
c_tests() {
	setarch -R ctest --test-dir "$1" --no-tests=error --output-on-failure --parallel $((2 * $(nproc))) "${@:2}" |
		tee "$BUILD/ctest" || return
	if grep -F '***Skipped' "$BUILD/ctest" | grep -vwE "$MAY_SKIP"; then
		echo "these may not be skipped"
		return 1
	fi
}

# A test that leaves something behind is wrong, even if it does no harm.
check_leftovers() {
	local status=0 process name
	for process in /proc/[0-9]*; do
		if [ "$process" != "/proc/$$" ] && read -r name 2>/dev/null <"$process/comm"; then
			echo "the process ${process#/proc/} is left: $name"
			status=1
		fi
	done
	if find /run/netns -mindepth 1 | grep .; then
		echo "these network namespaces are left"
		status=1
	fi
	return $status
}
