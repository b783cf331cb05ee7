# redis-rl: `make run` to try it, `make test` to prove it, `make help` for the rest. The scripts that do the work are in scripts/.
.DEFAULT_GOAL := help

# The server to run and to test on, a name or a path: Redis 7.0.5 or newer, or Valkey 7.2 or newer. The default is the installed one.
SERVER ?=
# The servers of `make matrix` and `make monitoring`: names of the table in scripts/servers.sh, or `installed`. The default is all for
# the former, and four for the latter.
SERVERS ?=
PORT ?= 6379
export SERVER SERVERS PORT

.PHONY: help run test busy bare recipes clients outages languages monitoring matrix redis-suite servers sanitize fuzz mutants histories lines named differential instructions core waiters bench bench-report scale scale-report demo demo-picture plots build deps install uninstall dist deb wheel packages lint fmt clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

run: ## Build, and start a server with the module loaded (PORT=6379, or the next free one)
	@scripts/run.sh

test: ## Run all checks: format, lints, unit, property and integration tests
	@scripts/test.sh

TIMES ?= 5
busy: ## Run `make test` TIMES=5 times with a busy loop on each processor: a slow machine must not make a test fail
	@TIMES="$(TIMES)" scripts/busy.sh scripts/test.sh

STEPS ?= run test
AS ?= root
bare: ## Run `make run` and `make test` in a Debian that has only git, make and Rust, as AS=root or AS=user (needs root)
	@scripts/bare.sh --as "$(AS)" $(STEPS)

recipes: ## Test the recipes of examples/, in Python and Node.js, on a server
	@scripts/recipes.sh

clients: ## Test the client packages in clients/, in Python, Node.js and Rust, on servers (SERVERS=), clusters and behind Sentinel
	@scripts/clients.sh

outages: ## Measure what web services answer while their Redis is stopped, refuses connections or is gone, as in docs/outages.md
	@scripts/clients.sh outages

languages: ## Run the programs of docs/languages.md, in Go, Node.js, PHP, Python and Ruby, against a server
	@scripts/recipes.sh languages

monitoring: ## Test the files of monitoring/ with Prometheus and redis_exporter, on four servers or on SERVERS=
	@scripts/monitoring.sh

matrix: ## Run the integration tests on every server, or on SERVERS='installed redis-8.6.2'
	@scripts/matrix.sh

SOURCE ?=
ONLY ?=
redis-suite: ## Run the tests of Redis itself with the module loaded: SOURCE=/path/to/redis, of the version of SERVER
	@SOURCE="$(SOURCE)" ONLY="$(ONLY)" scripts/redis-suite.sh

servers: ## Unpack the servers of the matrix into target/servers
	@scripts/servers.sh

sanitize: ## Run the tests with AddressSanitizer in the module
	@scripts/sanitize.sh

SECONDS ?= 600
fuzz: ## Fuzz the pure parts: replay all kept inputs, then look for new ones, SECONDS=600 for each of six targets
	@SECONDS_EACH="$(SECONDS)" scripts/fuzz.sh

mutants: ## Change the pure core in one place at a time, and list the changes that no test notices (FILE=, ONLY=, SHARD=0/8)
	@scripts/mutants.sh

SEED ?= $(shell date +%s)
HOURS ?= 0.1
histories: ## Break clusters under load for HOURS=0.1, from SEED on, and explain each reply by exact arithmetic
	@HOURS="$(HOURS)" SEED="$(SEED)" scripts/tool.sh histories

LINES ?= 10000000
lines: ## Simulate calls that wait in the lines of several keys, in LINES=10000000 steps from SEED on; a finding names its seed
	@STEPS="$(LINES)" SEED="$(SEED)" scripts/tool.sh lines

NAMED ?= 1000000
named: ## Make NAMED=1000000 random calls by SEED both by RL.USE and by the command that states the rule: they must do the same, on SERVER
	@CALLS="$(NAMED)" SEED="$(SEED)" scripts/tool.sh named

# A commit. The texts of RL.HELP and COMMAND DOCS are compared, too; TEXTS=no leaves them out. BYTES=no is for a base that stores ids or
# replicates in another form: RL.INSPECT and what replicas hold are compared instead, and deadlines need only be as documented.
BASE ?=
CALLS ?= 1000000
TEXTS ?= yes
BYTES ?= yes
differential: ## Compare all that the module does with the build of commit BASE, in CALLS=1000000 random calls by SEED, on SERVER
	@scripts/tool.sh differential --base "$(BASE)" --calls "$(CALLS)" --seed "$(SEED)" $(if $(filter no,$(TEXTS)),--without-texts) $(if $(filter no,$(BYTES)),--without-bytes)

instructions: ## Count the instructions that a call of each command takes; BASE=<commit>: beside those of that commit
	@scripts/tool.sh instructions $(if $(BASE),--base "$(BASE)")

core: ## Time the decisions of the pure core in nanoseconds, without a server
	@scripts/tool.sh core

WAITERS ?= 10000
waiters: ## Measure what WAITERS=10000 waiting clients cost: memory, wake-ups per second, the latency of PING meanwhile
	@scripts/tool.sh waiters "$(WAITERS)"

ROUNDS ?= 5
LOAD ?= 0.8
# Measure only this part, and keep the other figures: speed, memory, scale, ids or clients of `make bench`; shards, wallets,
# failover or memory of `make scale`.
PART ?=
bench: ## Measure calls, built-ins and other rate limiters in ROUNDS=5 of LOAD=0.8 seconds a case, into docs/benchmarks.*
	@scripts/tool.sh bench benchmarks --rounds "$(ROUNDS)" --seconds "$(LOAD)" $(addprefix --part ,$(PART))

bench-report: ## Write docs/benchmarks.md, docs/benchmarks-tables.md and their charts again from docs/benchmarks.json
	@scripts/tool.sh bench benchmarks --report

scale: ## Measure and simulate split limits, wallets, failovers and memory, by SEED, into docs/scale.* (PART=shards: only this part)
	@scripts/tool.sh bench scale $(if $(filter file,$(origin SEED)),,--seed "$(SEED)") $(addprefix --part ,$(PART))

scale-report: ## Write the tables of docs/scale.md and its charts again from docs/scale.json
	@scripts/tool.sh bench scale --report

DEMO ?= 26
demo: ## Watch the four algorithms side by side under the same traffic, for DEMO=26 seconds
	@scripts/tool.sh demo --seconds "$(DEMO)"

PICTURE ?= docs/demo.svg
demo-picture: ## Record the demo, in half the time, as a picture that plays: PICTURE=docs/demo.svg
	@scripts/tool.sh demo --seconds 13 --picture "$(PICTURE)"

PLOTS ?= docs
LATE ?= 50
plots: ## Draw which calls the algorithms grant, from real calls, into PLOTS=docs; calls may be LATE=50 ms
	@scripts/tool.sh plots --out "$(PLOTS)" --late "$(LATE)"

build: ## Build the module, target/release/libredis_rl.so
	@scripts/build.sh

PREFIX ?= /usr/local
MODULEDIR ?= $(PREFIX)/lib/redis/modules
install: ## Install the module in PREFIX=/usr/local, its library in MODULEDIR=PREFIX/lib/redis/modules (DESTDIR= for packages)
	@PREFIX="$(PREFIX)" MODULEDIR="$(MODULEDIR)" DESTDIR="$(DESTDIR)" scripts/install.sh install

uninstall: ## Remove what `make install` has installed in PREFIX=/usr/local
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install.sh uninstall

dist: ## Make a tarball with the library, target/dist/redis-rl-<version>-linux-<arch>.tar.gz
	@scripts/dist.sh tarball

deb: ## Make a Debian package, target/dist/redis-rl_<version>-1_<arch>.deb
	@scripts/dist.sh deb

wheel: ## Make a Python wheel and an npm package with a server, the module and a launcher in target/dist, for trials and tests
	@scripts/wheel.sh

packages: ## Test what docs/install.md says, in bare systems: packages, tarball, Dockerfile, compose, systemd, Kubernetes (needs root)
	@scripts/packages.sh

deps: ## Install what is missing: a server with its command line client, libclang, a C compiler
	@scripts/build.sh deps

lint: ## Check format and lints
	@scripts/lint.sh

fmt: ## Format the code
	@cargo fmt --all

clean: ## Remove what was built
	@cargo clean
