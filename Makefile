# Everything here needs Go and make; race also needs a C compiler.

GO       ?= go
BIN      := bin
FUZZTIME ?= 30s
ARGS     ?=

# PEERS=1 compiles the databases that go-ycsb compares with into it. VERBS=1
# compiles --fabric verbs in; it needs a C compiler, libibverbs and librdmacm.
NAMES := $(strip $(if $(PEERS),peers) $(if $(VERBS),verbs))
TAGS  := $(if $(NAMES),-tags '$(NAMES)')

COMMIT  := $(shell git rev-parse --short HEAD 2>/dev/null)
LDFLAGS := -X drtmx/internal/command.commit=$(COMMIT)

# Packages that run several goroutines or share memory with other processes. The
# one that takes longest comes first: most of its time is waiting, for which others
# need not wait.
CONCURRENT := ./server/... ./index/... ./internal/mem/... ./internal/block/... ./internal/hist/... ./internal/load/... \
	./internal/exec/... ./internal/wal/... ./internal/image/... ./internal/datadir/... ./internal/backup/... \
	./internal/cluster/... ./internal/member/... ./internal/metrics/... ./rdma/... ./txn/... ./ycsb/...

.PHONY: all build tpcc ycsb compare test test-verbs bench-verbs race race-quick planted sim sim-planted sim-survey histories lint cross bench bench-peers measure fuzz fuzz-frames soak clean

all: build

build:
	$(GO) build $(TAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/...

# Starts four data servers, loads and runs TPC-C; ARGS are further flags.
tpcc: build
	@$(BIN)/drtmx tpcc run $(ARGS)

# YCSB A to F, each on new data servers over shared memory.
YCSB ?= -p recordcount=20000 -p operationcount=1000000 -p maxexecutiontime=3 --threads 8 -p drtmx.fabric=shm
ycsb: build
	@set -e; for w in a b c d e f; do \
		echo "== workload $$w"; \
		out=$$($(BIN)/go-ycsb loadrun drtmx -P ycsb/workloads/workload$$w $(YCSB) $(ARGS)); \
		echo "$$out" | grep -E '^(Run finished|[A-Z_]+ *- )'; \
	done

# Runs all designs in turn on one cluster and prints ratios.
compare: build
	@$(BIN)/drtmx tpcc compare $(ARGS)

test:
	$(GO) test -p 4 -timeout 10m ./server/... ./internal/cluster ./internal/command ./...

# Tests the verbs provider in a guest with Soft-RoCE; DEVICE=mlx5_0 uses that
# device of this machine instead.
test-verbs:
	@GO="$(GO)" DEVICE="$(DEVICE)" rdma/verbs/softroce/run.sh

# Compares the latency of READs over verbs with perftest's, on the same device.
bench-verbs:
	@GO="$(GO)" DEVICE="$(DEVICE)" BENCH=7 rdma/verbs/softroce/run.sh

# With the tag invariants the detector sees every word of registered memory, and
# assertions are on. Programs that embed the engine run without it.
race:
	$(GO) test -race -tags invariants -short -timeout 20m $(CONCURRENT)
	$(GO) test -race -short -run UnderDetector ./server

# What share memory the most, in the tests that do so: .ci/run has no more time.
RACE_QUICK := ./internal/mem ./internal/block ./internal/exec ./internal/load ./rdma/inproc ./rdma/shm ./rdma/tcp ./index/learned/read ./index/learned/tree ./txn
RACE_ALONE := TestRowsGrowAndShrink|TestWrongModels|TestFlood|TestEmptiedRegion|TestFallingSizes|TestSessionGives|TestClosedSessions|TestMutated|TestHalfOpen|TestBefore|TestNoFallbacks|TestWarmup|TestGenerations|TestExtents|TestQueueChurn|TestIdleConnection|TestScanBound|TestSlowHandshakes|TestTurnsAreRare|TestStepsOf|Patches|Rounds|TestQueuedReads|TestTailListIsAHint|TestStringTables|TestAllocations|TestIntervals|TestPastDoesNotAllocate|TestListOfHotSubModel|TestHostile|TestPeerThatDoesNotRead|TestReplyToPeer|TestCutAtEveryByte|CostWhat|TestConformance/(plain|latency|adversaryInOrder)|TestConformanceOfVariants/(socket_file|no_spinning)
race-quick:
	$(GO) test -race -tags invariants -short -timeout 20m -skip '$(RACE_ALONE)' $(RACE_QUICK)

# The tests named for a planted bug must catch it. BUGS is a regular expression
# that chooses some of the bugs; SHARE is one of several shares, such as 0/2; IN
# chooses those whose tests are in packages that it matches. JOBS of them at a time.
JOBS ?= 2
planted:
	DRTMX_PLANTED='$(BUGS)' DRTMX_PLANTED_SHARE='$(SHARE)' DRTMX_PLANTED_IN='$(IN)' $(GO) test -count 1 -v -run TestBugsAreCaught -parallel $(JOBS) -timeout 60m ./internal/planted

# Runs and checks long random histories; SIM is the length of each scenario.
SIM ?= 20s
histories:
	DRTMX_SIM=$(SIM) $(GO) test ./server -run Histories -parallel 6 -v -timeout 60m
	DRTMX_LONG=600 $(GO) test ./server -run TestLongHistory -v -timeout 60m

# Simulates clusters, one for each seed: see docs/invariants.md. SEEDS is a range, and
# FOR a time; SEED=17 is one of them, of which TRACE=1 prints all events and SHRINK=1
# looks for a smaller case that fails. KIND is a kind of cluster, REPLAY=1 runs each
# seed again and compares the traces, RACE=1 has the race detector, and KEPT=1 begins
# with the seeds that once failed. ORDER and WITHOUT are as failures say.
SEEDS  ?= 1-1000
REPLAY ?= 10
sim:
	@$(GO) run ./internal/sim/simulate -seeds $(or $(SEED),$(SEEDS)) -replay $(REPLAY) $(if $(KIND),-kind '$(KIND)') \
		$(if $(FOR),-time $(FOR)) $(if $(TRACE),-trace) $(if $(SHRINK),-shrink) $(if $(RACE),-race) \
		$(if $(KEPT),-kept internal/sim/kept.txt) $(if $(TABLE),-table '$(TABLE)') $(if $(ORDER),-order $(ORDER)) $(if $(WITHOUT),-without '$(WITHOUT)')

# The simulator must find planted bugs, each within a number of seeds. BUGS is a
# regular expression that chooses some of them.
sim-planted:
	DRTMX_PLANTED_SIM='$(BUGS)' $(GO) test -count 1 -v -run TestSimulatorFindsBugs -timeout 0 ./internal/planted

# How many seeds find each planted bug: results/planted.md. Goes on where it ended. BUGS chooses some
# of them, KIND a kind of cluster.
sim-survey:
	DRTMX_PLANTED_TABLE=$(CURDIR)/results/planted.md DRTMX_PLANTED_SIM='$(BUGS)' DRTMX_PLANTED_KIND='$(KIND)' \
		$(GO) test -count 1 -v -run TestSurvey -timeout 0 ./internal/planted

# Other systems: what is portable is txn, tables and server over inproc and tcp.
PORTABLE := ./txn ./txn/stats ./tables ./server ./server/metrics ./rdma/inproc ./rdma/tcp
SYSTEMS  ?= darwin/arm64 windows/amd64 freebsd/amd64
cross:
	GOOS=linux GOARCH=arm64 CGO_ENABLED=0 $(GO) vet ./...
	@set -e; for t in $(SYSTEMS); do \
		echo "GOOS=$${t%/*} GOARCH=$${t#*/} go build $(PORTABLE)"; \
		GOOS=$${t%/*} GOARCH=$${t#*/} CGO_ENABLED=0 $(GO) build $(PORTABLE); \
	done

# Files that only some builds have, by their tags, are in these packages.
SIMULATED := simulated invariants
TAGGED    := ./server ./internal/cluster ./internal/sim/... ./internal/mem ./internal/invariants
lint:
	@out=$$($(GO) tool gofumpt -l .); if [ -n "$$out" ]; then echo "not formatted by gofumpt:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	$(GO) vet -tags '$(SIMULATED)' $(TAGGED)
	$(GO) tool staticcheck ./...
	$(GO) tool staticcheck -tags '$(SIMULATED)' $(TAGGED)

bench:
	$(GO) test -run '^$$' -bench . -benchmem ./...

# What stands for the papers' figures, beside their ratios: results/papers.md. RESULTS=quick is a
# check of each, without the slowest; ONLY='ROLEX' those whose names match.
.PHONY: results
results:
	$(GO) run ./results/papers $(if $(ONLY),-only '$(ONLY)')

# Takes the measurements of results/ and records them; about half an hour.
measure:
	results/measure.sh

# Compares drtmx with Redis, PostgreSQL, badger and bbolt: results/peers.md.
# Takes up to 25 minutes, with PEERS_QUICK=1 two.
bench-peers:
	results/peers.sh

# Decoders of bytes from peers: handshakes, frames, rings, RPC envelopes. Runs
# each target for FUZZTIME, a time or a number of executions: FUZZTIME=2000000x.
FRAMES := ./rdma/tcp:FuzzHandshake ./rdma/tcp:FuzzGreeting ./rdma/tcp:FuzzAgent ./rdma/tcp:FuzzClient \
	./rdma/shm:FuzzMessage ./rdma/shm:FuzzSegment ./rdma/shm:FuzzVerbs ./rdma/verbs:FuzzFragment \
	./internal/wire:FuzzDecoders ./internal/cluster:FuzzDecodeInfo ./server:FuzzHandle
fuzz-frames:
	@set -e; for f in $(FRAMES); do GO="$(GO)" .ci/fuzz $${f%:*} $${f#*:} $(FUZZTIME); done

# Runs every fuzz target in turn, each for FUZZTIME.
fuzz:
	@set -e; for pkg in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			GO="$(GO)" .ci/fuzz $$pkg $$target $(FUZZTIME); \
		done; \
	done

# Everything that needs luck, long time or a guest, for a time, with random seeds:
# histories, all of the race detector's tests, all planted bugs, fuzzing, verbs. A
# part by its name: make soak SOAK=10m PARTS='race verbs'.
SOAK ?= 30m
soak:
	@.ci/soak $(SOAK) $(PARTS)

clean:
	rm -rf $(BIN)
