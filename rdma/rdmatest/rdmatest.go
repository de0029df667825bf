package rdmatest

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"drtmx/internal/mem"
	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/rdma"
)

// patience bounds each wait of the suite; exceeding it is a failure. A case may
// wait several times.
const (
	patience     = time.Minute
	casePatience = 4 * patience
)

// Fixture is a provider under test, created for every case. It closes its
// resources with t.Cleanup.
type Fixture struct {
	// Provider listens, and dials unless Dialer is set. It must lose nothing:
	// the suite does not allow faults that break connections or repeat
	// requests.
	Provider rdma.Provider
	// Dialer dials instead of Provider if clients are configured separately.
	Dialer rdma.Provider
	// Addr returns an unused address to listen at; nil means "" for every
	// endpoint. Peers dial the address that Endpoint.Addr returns.
	Addr func() string
	// NewRegion makes memory the provider can register; nil means mem.New.
	NewRegion func(mem.Options) (*mem.Region, error)
	// Grants are the accesses a region can be granted; 0 means AccessRead.
	Grants rdma.Access
	// Performs says that endpoints perform WRITEs and atomics in their own process: see rdma.Agent.
	Performs bool
	// Allocs is the number of allocations allowed per round in steady state,
	// for providers over a library that allocates; the contract requires 0.
	Allocs float64
	// Kill ends an endpoint abruptly, as the death of its process would. The
	// suite still calls its Close. If Kill is nil, the suite skips the cases
	// that need it, with a message.
	Kill func(rdma.Endpoint)
	// Drop ends a connection abruptly, as the death of the client's process
	// would. The suite still calls its Close. nil means Close.
	Drop func(rdma.Conn)
}

// Case is one conformance test.
type Case struct {
	Name string
	run  func(*rig)
}

// Cases lists the suite.
func Cases() []Case {
	var all []Case
	for _, group := range [][]Case{readCases, orderCases, writeCases, grantCases, badCases, callCases, lifeCases, stepCases, countCases} {
		all = append(all, group...)
	}
	return all
}

// Run runs every case as a subtest of t, each with a new fixture, and checks
// that none leaves a goroutine behind.
func Run(t *testing.T, mk func(testing.TB) Fixture) {
	cases := Cases()
	t.Logf("%d conformance cases", len(cases))
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) { runCase(t, c, mk) })
	}
}

func runCase(t testing.TB, c Case, mk func(testing.TB) Fixture) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { // runs last
		if err := goleak.Find(before); err != nil {
			t.Errorf("the case leaves goroutines behind: %v", err)
		}
	})
	seed := Seed(t)
	ctx, cancel := context.WithTimeout(context.Background(), casePatience)
	t.Cleanup(cancel)
	c.run(&rig{TB: t, f: mk(t), ctx: ctx, rng: rng.New(seed).Split(c.Name)})
}

// seeds are those of running tests, so that all parts of one draw from one.
var seeds sync.Map // testing.TB to uint64

// Seed returns the seed of test t, the same at every call: see testseed.Of.
func Seed(t testing.TB) uint64 {
	t.Helper()
	if v, ok := seeds.Load(t); ok {
		return v.(uint64)
	}
	seed := testseed.Of(t)
	seeds.Store(t, seed)
	t.Cleanup(func() { seeds.Delete(t) })
	return seed
}

// Catches fails t unless the named case rejects the fixture: the proof that
// the case can fail. What a case finds may depend on how goroutines take turns: it
// runs again, with the next seed, until it has found something, for a minute. Catches
// returns the first complaint.
func Catches(t *testing.T, name string, mk func(testing.TB) Fixture) string {
	t.Helper()
	for _, c := range Cases() {
		if c.Name != name {
			continue
		}
		seed := Seed(t)
		for end := time.Now().Add(time.Minute); time.Now().Before(end); seed++ {
			r := &recorder{TB: t}
			seeds.Store(r, seed)
			t.Cleanup(func() { seeds.Delete(r) })
			if r.do(func() { runCase(r, c, mk) }); r.first != "" {
				return r.first
			}
		}
		t.Errorf("case %s accepts a provider that breaks the contract", name)
		return ""
	}
	t.Fatalf("no case %q", name)
	return ""
}

// rig is what a case works with. Its methods fail the case on any error and,
// like testing.TB.FailNow, belong on the case's goroutine.
type rig struct {
	testing.TB
	f   Fixture
	ctx context.Context
	rng *rng.Stream
}

func (r *rig) check(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// listen opens an endpoint that is closed at the end of the case.
func (r *rig) listen(o rdma.ListenOptions) rdma.Endpoint {
	r.Helper()
	addr := ""
	if r.f.Addr != nil {
		addr = r.f.Addr()
	}
	return r.listenAt(addr, o)
}

func (r *rig) listenAt(addr string, o rdma.ListenOptions) rdma.Endpoint {
	r.Helper()
	e, err := r.f.Provider.Listen(addr, o)
	r.check(err)
	r.Cleanup(func() {
		if err := e.Close(); err != nil {
			r.Errorf("close of the endpoint: %v", err)
		}
	})
	return e
}

// server is an endpoint with one region that echoes requests.
func (r *rig) server() (rdma.Endpoint, *mem.Region, rdma.RKey) {
	r.Helper()
	e := r.listen(rdma.ListenOptions{})
	m := r.region(2)
	k := r.register(e, m, rdma.AccessRead)
	r.check(e.Serve(Echo))
	return e, m, k
}

func (r *rig) dialer() rdma.Provider {
	if r.f.Dialer != nil {
		return r.f.Dialer
	}
	return r.f.Provider
}

// dial connects; the connection is closed at the end of the case.
func (r *rig) dial(e rdma.Endpoint) rdma.Conn {
	r.Helper()
	c, err := r.dialer().Dial(r.ctx, e.Addr())
	r.check(err)
	r.Cleanup(func() { _ = c.Close() })
	return c
}

const segmentBytes = 1 << 16

// region makes a region of n segments, filled with Pattern, that can grow to
// four more.
func (r *rig) region(n int) *mem.Region { return r.regionOf(n, segmentBytes) }

func (r *rig) regionOf(n int, segment uint64) *mem.Region {
	r.Helper()
	mk := r.f.NewRegion
	if mk == nil {
		mk = mem.New
	}
	m, err := mk(mem.Options{Name: "rdmatest", SegmentBytes: segment, MaxBytes: uint64(n+4) * segment})
	r.check(err)
	for m.Size() < uint64(n)*segment {
		_, err := m.Grow()
		r.check(err)
	}
	FillPattern(m, 0, m.Size())
	return m
}

func (r *rig) register(e rdma.Endpoint, m *mem.Region, a rdma.Access) rdma.RKey {
	r.Helper()
	k, err := e.Register(m, a)
	r.check(err)
	return k
}

// needs skips the case unless a region can be granted a.
func (r *rig) needs(a rdma.Access) {
	r.Helper()
	if r.f.Grants&a != a {
		r.Skipf("provider %s grants no such access", r.f.Provider.Name())
	}
}

// do performs a batch that must succeed.
func (r *rig) do(c rdma.Conn, b *rdma.Batch) {
	r.Helper()
	r.check(rdma.Do(r.ctx, c, b))
}

// load READs one word.
func (r *rig) load(c rdma.Conn, k rdma.RKey, addr uint64) uint64 {
	r.Helper()
	var b rdma.Batch
	var buf [1]uint64
	b.Read(k, addr, buf[:])
	r.do(c, &b)
	return buf[0]
}

// patience bounds a wait; a case that is expected to fail waits less.
func (r *rig) patience() time.Duration {
	if _, ok := r.TB.(*recorder); ok {
		return patience / 60
	}
	return patience
}

// eventually polls cond until it holds.
func (r *rig) eventually(what string, cond func() bool) {
	r.Helper()
	for deadline := time.Now().Add(r.patience()); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatalf("%s: not within %v", what, r.patience())
		}
	}
}

// receive takes a value from ch within the suite's patience.
func receive[T any](r *rig, what string, ch <-chan T) T {
	r.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		r.Fatalf("%s: not within %v", what, patience)
		panic("unreachable")
	}
}

// Pattern is the word that FillPattern puts at byte offset off.
func Pattern(off uint64) uint64 {
	x := (off + 1) * 0x9e3779b97f4a7c15
	return x ^ x>>29
}

// FillPattern stores Pattern in the n bytes at off, both multiples of 8.
func FillPattern(m *mem.Region, off, n uint64) {
	for ; n > 0; off, n = off+mem.WordBytes, n-mem.WordBytes {
		m.MustSpan(off, mem.WordBytes).Store(0, Pattern(off))
	}
}

// HasPattern reports whether buf is what a READ at addr of FillPattern's
// words gives, and else the index of the first wrong word.
func HasPattern(buf []uint64, addr uint64) (int, bool) {
	for i, v := range buf {
		if v != Pattern(addr+uint64(i)*mem.WordBytes) {
			return i, false
		}
	}
	return 0, true
}

// Echo is a handler that answers with the request.
func Echo(q *rdma.Request) { _ = q.Reply(q.Body) }
