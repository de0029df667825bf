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
LDFLAGS := -X main.commit=$(COMMIT)

# Packages that run several goroutines or share memory with other processes.
CONCURRENT := ./internal/mem/... ./internal/block/... ./internal/hist/... ./internal/load/... \
	./internal/cluster/... ./internal/member/... ./internal/metrics/... ./rdma/... ./index/... ./txn/... ./server/... ./ycsb/...

.PHONY: all build tpcc ycsb compare test test-verbs bench-verbs race planted sim lint bench bench-peers measure fuzz fuzz-frames clean

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
	$(GO) test -timeout 10m ./...

# Tests the verbs provider in a guest with Soft-RoCE; DEVICE=mlx5_0 uses that
# device of this machine instead.
test-verbs:
	@GO="$(GO)" DEVICE="$(DEVICE)" rdma/verbs/softroce/run.sh

# Compares the latency of READs over verbs with perftest's, on the same device.
bench-verbs:
	@GO="$(GO)" DEVICE="$(DEVICE)" BENCH=7 rdma/verbs/softroce/run.sh

race:
	$(GO) test -race -short -timeout 20m $(CONCURRENT)

# The tests named for a planted bug must catch it. BUGS is a regular expression
# that chooses some of the bugs.
planted:
	DRTMX_PLANTED='$(BUGS)' $(GO) test -count 1 -v -run TestBugsAreCaught -parallel 2 -timeout 60m ./internal/planted

# Runs and checks long random histories; SIM is the length of each scenario.
SIM ?= 20s
sim:
	DRTMX_SIM=$(SIM) $(GO) test ./server -run Histories -parallel 6 -v -timeout 60m
	DRTMX_LONG=600 $(GO) test ./server -run TestLongHistory -v -timeout 60m

lint:
	@out=$$($(GO) tool gofumpt -l .); if [ -n "$$out" ]; then echo "not formatted by gofumpt:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

bench:
	$(GO) test -run '^$$' -bench . -benchmem ./...

# Takes the measurements of results/ and records them; about twenty minutes.
measure:
	results/measure.sh

# Compares drtmx with Redis, PostgreSQL, badger and bbolt: results/peers.md.
# Takes up to 25 minutes, with PEERS_QUICK=1 two.
bench-peers:
	results/peers.sh

# Decoders of bytes from peers: handshakes, frames, rings, RPC envelopes. Runs
# each target for FUZZTIME, a time or a number of executions: FUZZTIME=2000000x.
FRAMES := ./rdma/tcp:FuzzHandshake ./rdma/tcp:FuzzGreeting ./rdma/tcp:FuzzAgent ./rdma/tcp:FuzzClient \
	./rdma/shm:FuzzMessage ./rdma/shm:FuzzSegment ./rdma/verbs:FuzzFragment \
	./internal/wire:FuzzDecoders ./internal/cluster:FuzzDecodeInfo ./server:FuzzHandle
fuzz-frames:
	@set -e; for f in $(FRAMES); do \
		echo "$$f"; \
		$(GO) test -run '^$$' -fuzz "^$${f#*:}\$$" -fuzztime $(FUZZTIME) $${f%:*}; \
	done

# Runs every fuzz target in turn, each for FUZZTIME.
fuzz:
	@set -e; for pkg in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "$$pkg $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg; \
		done; \
	done

clean:
	rm -rf $(BIN)
