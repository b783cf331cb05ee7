# redis-rl: `make run` to try it, `make test` to prove it, `make help` for the rest. What a target does is in scripts/.
.DEFAULT_GOAL := help

# The server to run and to test on, a name or a path: Redis 7.0.5 or newer, or Valkey 7.2 or newer. By default the installed one.
SERVER ?=
# The servers of `make matrix`: names of the table in scripts/servers.sh, or `installed`. By default all.
SERVERS ?=
PORT ?= 6379
export SERVER SERVERS PORT

.PHONY: help run test busy bare recipes matrix servers sanitize fuzz chaos instructions core waiters bench bench-report demo plots build deps lint fmt clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

run: ## Build, and start a server with the module loaded (PORT=6379, or the next free one)
	@scripts/run.sh

test: ## Everything that proves the product: format, lints, unit, property and integration tests
	@scripts/test.sh

TIMES ?= 5
busy: ## `make test` TIMES=5 times in a row beside a busy loop for each processor: no test may fail because the machine is slow
	@TIMES="$(TIMES)" scripts/busy.sh scripts/test.sh

# Run `make run` and `make test` as somebody has them who has only git, make and Rust. Needs root.
STEPS ?= run test
AS ?= root
bare: ## `make run` and `make test` in a bare Debian, as root or by AS=user; STEPS='run test' are its steps
	@scripts/bare.sh --as "$(AS)" $(STEPS)

recipes: ## Test the recipes of examples/, in Python, Node.js and Rust, on a server
	@scripts/recipes.sh

matrix: ## The integration tests on every server, or on SERVERS='installed redis-8.6.2'
	@scripts/matrix.sh

servers: ## Unpack the servers of the matrix into target/servers
	@scripts/servers.sh

sanitize: ## All tests with AddressSanitizer in the module
	@scripts/sanitize.sh

# For each of them.
SECONDS ?= 600
fuzz: ## Fuzz the pure parts, SECONDS=600 for each of four targets, after all inputs that are kept
	@SECONDS_EACH="$(SECONDS)" scripts/fuzz.sh

CHAOS ?= 120
SEED ?= $(shell date +%s)
chaos: ## A cluster under load for CHAOS=120 seconds, with kills, failovers, restarts and slot moves by SEED
	@scripts/bench.sh chaos --seconds "$(CHAOS)" --seed "$(SEED)"

instructions: ## Count the instructions of a call, command by command
	@scripts/bench.sh instructions

core: ## Time the pure core, decision by decision, in nanoseconds: no server takes part
	@scripts/bench.sh core

waiters: ## Measure what 10 000 waiting clients cost: memory, wake-ups a second, a PING's latency meanwhile
	@scripts/bench.sh waiters

ROUNDS ?= 5
# The load on each case in a round, in seconds.
LOAD ?= 0.8
# Measure only this once more, and keep all else that is in docs/benchmarks.json: speed, memory or scale.
PART ?=
bench: ## Measure calls beside the built-ins and other rate limiters, in ROUNDS=5, into docs/benchmarks.*; PART=speed: only that
	@scripts/bench.sh speed --rounds "$(ROUNDS)" --seconds "$(LOAD)" $(addprefix --part ,$(PART))

bench-report: ## Write docs/benchmarks.md and its charts anew, from docs/benchmarks.json
	@scripts/bench.sh speed --report

# In so many seconds: traffic and periods follow.
DEMO ?= 26
demo: ## Watch the four algorithms side by side under the same traffic, for DEMO=26 seconds
	@scripts/bench.sh demo --seconds "$(DEMO)"

PLOTS ?= docs
# How late a call may be, in milliseconds.
LATE ?= 50
plots: ## Draw what the algorithms grant, of real calls, into docs/choosing.md and its pictures (PLOTS=docs)
	@scripts/bench.sh plots --out "$(PLOTS)" --late "$(LATE)"

build: ## Build the module, target/release/libredis_rl.so
	@scripts/build.sh

deps: ## Install what is missing: a server with its command line client, libclang, a C compiler
	@scripts/deps.sh

lint: ## Check format and lints
	@scripts/lint.sh

fmt: ## Format the code
	@cargo fmt

clean: ## Remove what was built
	@cargo clean
