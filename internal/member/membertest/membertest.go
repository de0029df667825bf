// Package membertest is the conformance suite of member.Store.
package membertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"drtmx/internal/member"
	"drtmx/internal/placement"
	"drtmx/internal/testseed"
)

// Fixture is one implementation. Each test uses separate cluster names.
type Fixture struct {
	// Open returns a handle on the members of a cluster. Handles of one name
	// share them. The suite closes its handles.
	Open func(t testing.TB, name string) member.Store
	// TTL is the shortest lease that the implementation grants.
	TTL time.Duration
}

// bound limits the time of every test of the suite.
func bound() time.Duration { return testseed.Patience() }

// long is the time of leases that must not end during a test, however busy the
// machine is.
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
		{"LeaveUnasked", testLeaveUnasked},
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
		{"PlacesOfDirectories", testPlaces},
		{"CopiesOfDirectories", testCopies},
		{"LogsOfDirectories", testLogs},
		{"Advance", testAdvance},
		{"Secret", testSecret},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeoutCause(t.Context(), bound(), fmt.Errorf("membertest: %s took longer than %v", c.name, bound()))
			t.Cleanup(cancel)
			c.test(t, &env{Fixture: f, ctx: ctx, cluster: name(t)})
		})
	}
}

// env is the environment of a test.
type env struct {
	Fixture
	ctx     context.Context
	cluster string
}

// name returns a cluster name that no other test uses.
func name(testing.TB) string { return "c" + member.NewInstance().String() }

// open returns a handle on the test's cluster.
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

// Seed is the seed of this run: see testseed.Of.
func Seed(t testing.TB) uint64 {
	t.Helper()
	return testseed.Of(t)
}

// server returns a server with one endpoint.
func server(index placement.Server, port int) member.Server {
	return member.Server{
		Index: index, Instance: member.NewInstance(), Zone: fmt.Sprintf("zone %d", index%2),
		Endpoints: []member.Endpoint{{Fabric: "tcp", Addr: fmt.Sprintf("10.0.0.%d:%d", index+1, port)}},
	}
}

// newMap returns a map without servers.
func newMap(size int) *member.Map {
	return &member.Map{Epoch: 1, ID: 1, Size: size, Placement: placement.Spread(size, 1)}
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

// lost waits until a lease has ended and returns the reason.
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
