// Package membertest is the conformance suite of member.Store.
package membertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"drtmx/internal/member"
)

// Fixture is one implementation. Each test uses cluster names of its own.
type Fixture struct {
	// Open makes a handle on the members of a cluster. Handles of one name share
	// them. The suite closes what it opens.
	Open func(t testing.TB, name string) member.Store
	// TTL is the shortest lease that the implementation gives.
	TTL time.Duration
}

// bound is how long anything here may take.
const bound = 20 * time.Second

// long is the time of leases that are not to end during a test, however busy
// the machine.
const long = time.Minute

// Run runs the suite. The tests of one fixture run at the same time.
func Run(t *testing.T, f Fixture) {
	for _, c := range []struct {
		name string
		test func(*testing.T, *env)
	}{
		{"Empty", testEmpty},
		{"Swap", testSwap},
		{"SwapRefusesBadMaps", testSwapBad},
		{"JoinTakesAnIndex", testJoin},
		{"JoinAgain", testJoinAgain},
		{"JoinRefusesBadServers", testJoinBad},
		{"Evict", testEvict},
		{"Abandoned", testAbandoned},
		{"Renewals", testRenewals},
		{"WatchWaits", testWatchWaits},
		{"WatchCoalesces", testWatchCoalesces},
		{"NamesAreApart", testNames},
		{"Contexts", testContexts},
		{"Closed", testClosed},
		{"NothingIsShared", testNothingShared},
		{"Contenders", testContenders},
		{"Admit", testAdmit},
		{"Follow", testFollow},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeoutCause(t.Context(), bound, fmt.Errorf("membertest: %s took longer than %v", c.name, bound))
			t.Cleanup(cancel)
			c.test(t, &env{Fixture: f, ctx: ctx, cluster: name(t)})
		})
	}
}

// env is what a test has.
type env struct {
	Fixture
	ctx     context.Context
	cluster string
}

// name makes a cluster's name that no other test has.
func name(testing.TB) string { return "c" + member.NewInstance().String() }

// open is a handle on the test's cluster.
func (e *env) open(t testing.TB) member.Store { return e.openName(t, e.cluster) }

func (e *env) openName(t testing.TB, name string) member.Store {
	t.Helper()
	s := e.Open(t, name)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// Seed is DRTMX_SEED if set, else a new one, and is printed.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("DRTMX_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			t.Fatalf("DRTMX_SEED: %v", err)
		}
		seed = v
	}
	t.Logf("DRTMX_SEED=%d", seed)
	return seed
}

// server is a server with one endpoint.
func server(index int, port int) member.Server {
	return member.Server{
		Index: index, Instance: member.NewInstance(),
		Endpoints: []member.Endpoint{{Fabric: "tcp", Addr: fmt.Sprintf("10.0.0.%d:%d", index+1, port)}},
	}
}

// newMap is one of servers without instances yet.
func newMap(size int) *member.Map {
	return &member.Map{Epoch: 1, Size: size, Primaries: make([]int, size)}
}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want(t testing.TB, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: error %v, want %v", what, err, target)
	}
}

// lost waits until a lease has ended and returns why.
func lost(t testing.TB, ctx context.Context, l member.Lease) error {
	t.Helper()
	select {
	case <-l.Lost():
		return l.Err()
	case <-ctx.Done():
		t.Fatal(context.Cause(ctx))
		return nil
	}
}
