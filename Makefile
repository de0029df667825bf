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

# What runs on several goroutines, or shares memory with other processes.
CONCURRENT := ./internal/mem/... ./internal/block/... ./internal/hist/... ./internal/driver/... \
	./internal/cluster/... ./internal/member/... ./internal/metrics/... ./rdma/... ./index/... ./txn/... ./server/... ./ycsb/...

.PHONY: all build tpcc ycsb compare test test-verbs bench-verbs race planted sim lint bench bench-peers measure fuzz fuzz-frames clean

all: build

build:
	$(GO) build $(TAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/...

# Loads and runs TPC-C on four data servers of its own; ARGS are further flags.
tpcc: build
	@$(BIN)/drtmx tpcc run $(ARGS)

# YCSB A to F, each on data servers of its own over shared memory.
YCSB ?= -p recordcount=20000 -p operationcount=1000000 -p maxexecutiontime=3 --threads 8 -p drtmx.fabric=shm
ycsb: build
	@set -e; for w in a b c d e f; do \
		echo "== workload $$w"; \
		out=$$($(BIN)/go-ycsb loadrun drtmx -P ycsb/workloads/workload$$w $(YCSB) $(ARGS)); \
		echo "$$out" | grep -E '^(Run finished|[A-Z_]+ *- )'; \
	done

# All designs in turn on one cluster, with ratios.
compare: build
	@$(BIN)/drtmx tpcc compare $(ARGS)

test:
	$(GO) test -timeout 10m ./...

# The provider over libibverbs, in a guest with Soft-RoCE; DEVICE=mlx5_0 uses
# that device of this machine instead.
test-verbs:
	@GO="$(GO)" DEVICE="$(DEVICE)" rdma/verbs/softroce/run.sh

# Latency of READs over verbs beside perftest's, on the same device.
bench-verbs:
	@GO="$(GO)" DEVICE="$(DEVICE)" BENCH=7 rdma/verbs/softroce/run.sh

race:
	$(GO) test -race -short -timeout 20m $(CONCURRENT)

# Every planted bug must be caught by the tests named for it. BUGS is a regular
# expression that chooses some of them.
planted:
	DRTMX_PLANTED='$(BUGS)' $(GO) test -count 1 -v -run TestBugsAreCaught -parallel 2 -timeout 60m ./internal/planted

# Long random histories, checked; SIM is the length of each scenario.
SIM ?= 20s
sim:
	DRTMX_SIM=$(SIM) $(GO) test ./server -run 'TestHistories|TestProcessHistories' -v -timeout 60m
	DRTMX_LONG=600 $(GO) test ./server -run TestLongHistory -v -timeout 60m

lint:
	@out=$$($(GO) tool gofumpt -l .); if [ -n "$$out" ]; then echo "not formatted by gofumpt:"; echo "$$out"; exit 1; fi
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

bench:
	$(GO) test -run '^$$' -bench . -benchmem ./...

# Runs and records the measurements of results/; about twenty minutes.
measure:
	results/measure.sh

# drtmx beside Redis, PostgreSQL, badger and bbolt: results/peers.md. Takes up
# to 25 minutes; PEERS_QUICK=1 for two.
bench-peers:
	results/peers.sh

# What takes in bytes of peers: handshakes, frames, rings, RPC envelopes. Each
# target for FUZZTIME, a time or a number of executions: FUZZTIME=2000000x.
FRAMES := ./rdma/tcp:FuzzHandshake ./rdma/tcp:FuzzGreeting ./rdma/tcp:FuzzAgent ./rdma/tcp:FuzzClient \
	./rdma/shm:FuzzMessage ./rdma/shm:FuzzSegment ./rdma/verbs:FuzzFragment \
	./internal/wire:FuzzDecoders ./internal/cluster:FuzzDecodeInfo ./server:FuzzHandle
fuzz-frames:
	@set -e; for f in $(FRAMES); do \
		echo "$$f"; \
		$(GO) test -run '^$$' -fuzz "^$${f#*:}\$$" -fuzztime $(FUZZTIME) $${f%:*}; \
	done

# Every fuzz target in turn, for FUZZTIME each.
fuzz:
	@set -e; for pkg in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "$$pkg $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg; \
		done; \
	done

clean:
	rm -rf $(BIN)
