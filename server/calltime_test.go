package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/internal/testaddr"
	"drtmx/internal/testseed"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/rdma/shm"
	"drtmx/rdma/tcp"
	"drtmx/tables"
	"drtmx/txn"
)

// entryAt is the key of an entry in a partition.
func entryAt(part int, n uint64) tables.Key { return tables.Num(uint64(part)<<32 + n) }

// callRig is a bank of three servers with two partitions each. The procedure "do"
// puts the entry n in the partitions in its arguments from the second byte on, the
// first of which is its home; n is the first byte. Before, it calls between, and reads
// that entry in the partition of a read.
type callRig struct {
	*Cluster
	t       *testing.T
	net     *inproc.Network
	entry   *tables.Table
	bodies  atomic.Int64 // that run
	reads   atomic.Int64 // that have begun
	between func(ctx context.Context)
	read    int // a partition; negative: none
}

func newCallRig(t *testing.T) *callRig {
	t.Helper()
	r := &callRig{t: t, net: inproc.New(inproc.Options{}), read: -1}
	cat := bank(t)
	r.entry = cat.MustTable("entry")
	var err error
	r.Cluster, err = Embedded(t.Context(), EmbeddedConfig{Catalog: cat, Servers: 3, Partitions: 6, Network: r.net, Procedures: []txn.Procedure{{
		Name: "do", Body: func(ctx context.Context, x *txn.Txn, args []byte) ([]byte, error) {
			r.bodies.Add(1)
			defer r.bodies.Add(-1)
			for _, part := range args[1:] {
				if err := x.Put(r.entry, entryAt(int(part), uint64(args[0])), r.entry.NewRow()); err != nil {
					return nil, err
				}
			}
			if r.read >= 0 {
				r.reads.Add(1)
				if _, err := x.Get(r.entry, entryAt(r.read, uint64(args[0]))); err != nil && !errors.Is(err, txn.ErrNotFound) {
					return nil, err
				}
			}
			if r.between != nil {
				r.between(ctx)
			}
			return nil, nil
		},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	for _, s := range r.Servers {
		s.elsewhere.time = time.Hour // what ends before does so by its caller's deadline
	}
	// READs of a server's memory succeed while the server is paused; requests do not.
	s := r.Servers[0]
	if s.client.db, err = exec.OpenLocal(t.Context(), exec.Config{
		Servers: s.cfg.Addrs, AllServers: true, Dial: s.cfg.Provider.Dial, Reads: exec.OrderedByRPC,
	}, allPartitions{&s.parts, s.clocks.running}); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *callRig) pause(server int) {
	r.t.Helper()
	if err := r.net.Pause(fmt.Sprintf("server-%d", server)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *callRig) resume(server int) {
	r.t.Helper()
	if err := r.net.Resume(fmt.Sprintf("server-%d", server)); err != nil {
		r.t.Fatal(err)
	}
}

// call gives the first server a call of do.
func (r *callRig) call(client uint64, left time.Duration, args ...byte) callAnswer {
	return handCall(r.Servers[0], wire.ID{Client: client, Seq: 1}, left, int(args[1]), "do", args)
}

// run is call for one that must commit.
func (r *callRig) run(client uint64, args ...byte) {
	r.t.Helper()
	if resp := r.call(client, 0, args...).wait(r.t); wire.Code(resp[0]) != wire.OK {
		r.t.Fatalf("code %d: %q", resp[0], resp[1:])
	}
}

// code returns the code of an answer, and fails if it is not one of those expected.
func (r *callRig) code(a callAnswer, want ...wire.Code) wire.Code {
	r.t.Helper()
	resp := a.wait(r.t)
	for _, c := range want {
		if wire.Code(resp[0]) == c {
			return c
		}
	}
	r.t.Errorf("code %d, want one of %d: %q", resp[0], want, resp[1:])
	return wire.Code(resp[0])
}

// running returns how many procedures a server runs outside their partitions.
func (s *Server) runningElsewhere() int {
	s.elsewhere.mu.Lock()
	defer s.elsewhere.mu.Unlock()
	return s.elsewhere.running
}

// awaitRunning waits until a server runs so many procedures outside their partitions.
func (r *callRig) awaitRunning(n int) {
	r.t.Helper()
	defer func() {
		if r.t.Failed() {
			r.t.Logf("%d procedures run, with %d bodies, want %d", r.Servers[0].runningElsewhere(), r.bodies.Load(), n)
		}
	}()
	eventually(r.t, "as many procedures run as there must be", func() bool { return r.Servers[0].runningElsewhere() == n })
}

// has fails unless each entry is there, or unless none is.
func (r *callRig) has(want bool, n uint64, parts ...int) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), testseed.Patience())
	defer cancel()
	there := map[int]bool{}
	if err := r.DB.View(ctx, func(x *txn.Txn) error {
		for _, part := range parts {
			_, err := x.Get(r.entry, entryAt(part, n))
			if err != nil && !errors.Is(err, txn.ErrNotFound) {
				return err
			}
			there[part] = err == nil
		}
		return nil
	}); err != nil {
		r.t.Error(err)
	}
	for _, part := range parts {
		if there[part] != want {
			r.t.Errorf("entry %d in partition %d is there: %v, want %v", n, part, there[part], want)
		}
	}
}

// free writes an entry by another transaction: nothing keeps it locked.
func (r *callRig) free(n uint64, parts ...int) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), testseed.Patience())
	defer cancel()
	for _, part := range parts {
		if err := r.DB.Update(ctx, func(x *txn.Txn) error { return x.Put(r.entry, entryAt(part, n), r.entry.NewRow()) }); err != nil {
			r.t.Errorf("entry %d in partition %d: %v", n, part, err)
		}
	}
}

// TestProceduresEndWithTheirCallers: procedures that read at a paused server end at
// their home when their callers give up, not with the pause, and none commits
// afterwards. A caller hears that nothing was committed, or can ask for it.
func TestProceduresEndWithTheirCallers(t *testing.T) {
	r := newCallRig(t)
	const calls, short = 200, 20 * time.Millisecond
	sessions := make([]*txn.Session, calls)
	for i := range sessions {
		var err error
		if sessions[i], err = r.DB.NewSession(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer sessions[i].Close()
		if _, err := sessions[i].Call(t.Context(), 3, "do", []byte{250, 3}); err != nil { // it stays at home
			t.Fatal(err)
		}
	}
	// As many sessions of the server have connections to the last one.
	r.read = 2
	var entered atomic.Int64
	all := make(chan struct{})
	r.between = func(ctx context.Context) {
		if entered.Add(1) == calls {
			close(all)
		}
		select {
		case <-all:
		case <-ctx.Done():
		}
	}
	var warm []callAnswer
	for i := range uint64(calls) {
		warm = append(warm, r.call(1000+i, 0, byte(i), 0, 4))
	}
	for _, a := range warm {
		r.code(a, wire.OK)
	}
	r.between = nil
	r.reads.Store(0)
	r.pause(2)
	heard, asked := 0, 0
	// On a busy machine few may come as far as that.
	for begin := time.Now(); r.reads.Load() < calls/4 && time.Since(begin) < testseed.Patience(); {
		errs := make([]error, calls)
		var all sync.WaitGroup
		for i, s := range sessions {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), short)
				defer cancel()
				_, errs[i] = s.Call(ctx, 3, "do", []byte{byte(i), 3, 1})
			})
		}
		all.Wait()
		last := time.Now()
		r.awaitRunning(0)
		if n := r.bodies.Load(); n > 0 {
			t.Errorf("%d bodies run, of procedures that are over", n)
		}
		t.Logf("all were over at their home %v after the last caller", time.Since(last))
		for i, err := range errs {
			var unknown *txn.UnknownOutcome
			switch {
			case !errors.Is(err, context.DeadlineExceeded):
				t.Errorf("call %d: %v, want %v", i, err, context.DeadlineExceeded)
			case errors.As(err, &unknown):
				asked++
				if err := r.DB.Outcome(t.Context(), unknown.ID); !errors.Is(err, txn.ErrConflict) {
					t.Errorf("outcome of call %d: %v, want %v", i, err, txn.ErrConflict)
				}
			default:
				heard++
			}
		}
	}
	t.Logf("%d callers have heard that nothing was committed, %d have asked; %d reads were begun", heard, asked, r.reads.Load())
	r.read = -1
	r.resume(2)
	r.run(9000, 251, 0, 1, 2)
	for i := range uint64(calls) {
		r.has(false, i, 3, 1)
	}
	r.has(true, 251, 0, 1, 2)
}

// TestProceduresOfPatientCallersEnd: a procedure whose caller has no deadline ends
// within the server's own bound.
func TestProceduresOfPatientCallersEnd(t *testing.T) {
	r := newCallRig(t)
	r.read = 2
	r.run(4, 4, 0, 1) // the server has its connections
	r.pause(2)
	r.Servers[0].elsewhere.time = 20 * time.Millisecond
	r.code(r.call(1, 0, 1, 0, 1), wire.Unavailable)
	r.awaitRunning(0)
	_, err := r.DB.Call(t.Context(), 0, "do", []byte{2, 0, 1})
	if !errors.Is(err, txn.ErrUnavailable) || !strings.Contains(err.Error(), "MaxCallTime") {
		t.Errorf("%v, want %v, by MaxCallTime", err, txn.ErrUnavailable)
	}
	r.resume(2)
	r.Servers[0].elsewhere.time = time.Hour
	r.run(3, 3, 0, 1, 2)
	r.has(false, 1, 0, 1)
	r.has(false, 2, 0, 1)
}

// TestCallsElsewhereAreBounded: a server runs so many procedures outside their
// partitions and no more, refuses the others at once with ErrUnavailable, and takes
// others when those have ended. Procedures that stay at home are not counted, nor are
// those whose commit waits for another server.
func TestCallsElsewhereAreBounded(t *testing.T) {
	r := newCallRig(t)
	const most = 4
	s := r.Servers[0]
	s.elsewhere.max = most
	r.run(1, 200, 0, 2) // the server has its connections
	r.pause(2)
	inDoubt := r.call(2, 0, 201, 0, 2) // handed over to the server that is paused
	eventually(t, "a commit begins", func() bool {
		s.elsewhere.mu.Lock()
		defer s.elsewhere.mu.Unlock()
		return s.elsewhere.committing == 1
	})
	release := make(chan struct{})
	r.between = func(ctx context.Context) {
		select {
		case <-release:
		case <-ctx.Done():
		}
	}
	var calls []callAnswer
	for i := range uint64(most) {
		calls = append(calls, r.call(10+i, 0, byte(i), 0, 1))
	}
	r.awaitRunning(most + 1)
	r.code(r.call(20, 0, 20, 0, 1), wire.Unavailable)
	if _, err := r.DB.Call(t.Context(), 0, "do", []byte{21, 0, 1}); !errors.Is(err, txn.ErrUnavailable) || !strings.Contains(err.Error(), "MaxCallsElsewhere") {
		t.Errorf("one more than %d: %v, want %v, by MaxCallsElsewhere", most, err, txn.ErrUnavailable)
	}
	close(release)
	for _, c := range calls {
		r.code(c, wire.OK)
	}
	r.between = nil
	r.run(22, 22, 0, 1)
	r.resume(2)
	r.code(inDoubt, wire.OK)
	r.has(false, 20, 0, 1)
	r.has(false, 21, 0, 1)
	r.awaitRunning(0)
	if s.elsewhere.committing != 0 {
		t.Errorf("%d commits are counted of nothing", s.elsewhere.committing)
	}
}

// TestNothingCommitsAfterTheDeadline: a procedure whose caller gives up after its body,
// wherever its commit waits, commits nothing, and leaves no lock.
func TestNothingCommitsAfterTheDeadline(t *testing.T) {
	const left = 100 * time.Millisecond
	for _, c := range []struct {
		name  string
		parts []byte
		// body waits for the deadline, or the commit of the parts does: for the
		// executor of one of them, or for the vote of a server that is paused.
		body   bool
		lock   int // a partition; negative: none
		paused int // a server; 0: none
	}{
		{"in the body, at home", []byte{0}, true, -1, 0},
		{"in the body, at one server", []byte{0, 3}, true, -1, 0},
		{"in the body, at two servers", []byte{0, 1}, true, -1, 0},
		{"for an executor, at one server", []byte{0, 3}, false, 3, 0},
		{"for an executor, at two servers", []byte{0, 3, 1}, false, 3, 0},
		{"for a vote", []byte{0, 1, 2}, false, -1, 2},
		{"for a vote, of one that is not at home", []byte{1, 2}, false, -1, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newCallRig(t)
			s := r.Servers[0]
			r.run(1, 200, 0, 1, 2, 3) // the server has its connections
			home := c.parts[0]
			if home%3 != 0 {
				home = 0
			}
			var bodies atomic.Int64
			r.between = func(ctx context.Context) {
				bodies.Add(1)
				if c.body {
					<-ctx.Done()
				}
			}
			if c.paused > 0 {
				r.pause(c.paused)
			}
			if c.lock >= 0 {
				s.parts.of[c.lock].mu.Lock()
			}
			args := append([]byte{7}, c.parts...)
			a := handCall(s, wire.ID{Client: 2, Seq: 1}, left, int(home), "do", args)
			began := clock.Fast()
			eventually(t, "the body runs", func() bool { return bodies.Load() > 0 })
			time.Sleep(max(began+2*left-clock.Fast(), 0))
			if c.lock >= 0 {
				s.parts.of[c.lock].mu.Unlock()
			}
			if c.paused > 0 {
				r.resume(c.paused)
			}
			r.code(a, wire.Late)
			r.between = nil
			for _, part := range c.parts {
				r.has(false, 7, int(part))
				r.free(7, int(part))
			}
			r.awaitRunning(0)
		})
	}
}

// TestLateVotesAreNotAwaited: the vote of a server that is paused is waited for no longer
// than the caller of the procedure waits.
func TestLateVotesAreNotAwaited(t *testing.T) {
	r := newCallRig(t)
	begin := time.Now()
	for n := uint64(1); ; n += 2 { // the machine may hold it up, and not each time
		r.run(n, 200, 0, 1, 2) // the server has its connections
		r.pause(2)
		sent := time.Now()
		r.code(r.call(n+1, 100*time.Millisecond, 7, 0, 1, 2), wire.Late)
		took := time.Since(sent)
		r.resume(2)
		r.awaitRunning(0)
		r.has(false, 7, 0, 1, 2)
		if took < peerTimeout {
			break
		}
		if time.Since(begin) > testseed.Patience() {
			t.Fatalf("a vote was waited for for %v, each time", took)
		}
	}
	r.free(7, 0, 1, 2)
}

// TestEndsTogether: a server closes at about the time at which the callers of its
// procedures give up, while it has as many procedures as it takes, the tables of its
// commit protocol are full, and some callers give up by themselves. Every caller gets
// one answer, none is told a decision of its procedure, and nothing commits that was
// said not to.
func TestEndsTogether(t *testing.T) {
	for round := range 5 {
		r := newCallRig(t)
		s := r.Servers[0]
		s.LimitTables(twophase.Limits{Open: 2, Kept: 4})
		s.elsewhere.max = 8
		r.run(1, 200, 0, 1, 2)
		r.pause(2)
		const left = 30 * time.Millisecond
		var calls []callAnswer
		for i := range uint64(24) {
			part := byte(1)
			if i%3 == 0 {
				part = 2 // its commit is handed over, or finds the tables full
			}
			calls = append(calls, r.call(100+i, left+time.Duration(i%5)*time.Millisecond, byte(i), 0, part))
		}
		given, giveUp := context.WithCancel(t.Context())
		gaveUp := make(chan error, 8)
		for i := range cap(gaveUp) {
			go func() {
				_, err := r.DB.Call(given, 0, "do", []byte{byte(100 + i), 0, 2})
				gaveUp <- err
			}()
		}
		time.Sleep(left - 5*time.Millisecond + time.Duration(round)*3*time.Millisecond)
		giveUp()
		closed := make(chan error, 1)
		go func() { closed <- s.Close() }()
		codes := map[wire.Code]int{}
		var all []wire.Code
		for _, c := range calls {
			code := r.code(c, wire.OK, wire.Late, wire.Unavailable, wire.InDoubt, wire.Conflict)
			all = append(all, code)
			codes[code]++
		}
		for range cap(gaveUp) {
			if err := <-gaveUp; err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, txn.ErrUnavailable) && !errors.Is(err, txn.ErrOutcomeUnknown) {
				t.Errorf("of a caller that gave up: %v", err)
			}
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		t.Logf("codes %v", codes)
		if n := s.runningElsewhere(); n != 0 {
			t.Errorf("%d procedures run at a server that is closed", n)
		}
		for i, c := range calls {
			if len(c) > 0 {
				t.Errorf("call %d has %d answers more", i, len(c))
			}
		}
		r.resume(2)
		for i, code := range all { // what is at the server that has closed is gone
			part := 1
			if i%3 == 0 {
				part = 2
			}
			if code != wire.InDoubt {
				r.has(code == wire.OK, uint64(i), part)
			}
		}
	}
}

// TestLateRequestsDoNotRun: a procedure that waits at its home until its caller has
// given up does not run any more.
func TestLateRequestsDoNotRun(t *testing.T) {
	r := newCallRig(t)
	s, ran := r.Servers[0], atomic.Int64{}
	r.between = func(context.Context) { ran.Add(1) }
	s.parts.of[0].mu.Lock()
	a := r.call(1, 10*time.Millisecond, 1, 0)
	time.Sleep(50 * time.Millisecond)
	s.parts.of[0].mu.Unlock()
	r.code(a, wire.Late)
	if ran.Load() != 0 {
		t.Error("the body has run")
	}
	r.has(false, 1, 0)
}

// slowDials are connections that take longer than callers wait.
type slowDials struct {
	rdma.Provider
	takes time.Duration
}

func (p slowDials) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	t := time.NewTimer(p.takes)
	defer t.Stop()
	select {
	case <-t.C:
		return p.Provider.Dial(ctx, addr)
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestShortDeadlinesAtAHome: procedures whose callers have less time than a server
// takes to connect to another one get their connections in the end, and commit.
func TestShortDeadlinesAtAHome(t *testing.T) {
	cat := bank(t)
	entry := cat.MustTable("entry")
	addrs := []string{"server-0", "server-1"}
	provider := slowDials{inproc.New(inproc.Options{}), 100 * time.Millisecond}
	var servers []*Server
	for i := range addrs {
		s, err := New(Config{
			Index: i, Addrs: addrs, Catalog: cat, Provider: provider, MemoryBytes: 1 << 26,
			Procedures: []txn.Procedure{{Name: "put", Body: func(_ context.Context, x *txn.Txn, args []byte) ([]byte, error) {
				if _, err := x.Get(entry, entryAt(1, 8)); err != nil && !errors.Is(err, txn.ErrNotFound) {
					return nil, err
				}
				return nil, putBoth(x, entry, 0, uint64(args[0]))
			}}},
		})
		if err == nil {
			err = s.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		servers = append(servers, s)
	}
	begin := time.Now()
	for n := uint64(1); ; n++ {
		resp := handCall(servers[0], wire.ID{Client: 1, Seq: n}, 50*time.Millisecond, 0, "put", []byte{7}).wait(t)
		if wire.Code(resp[0]) == wire.OK {
			t.Logf("committed after %d calls, in %v", n, time.Since(begin))
			return
		}
		if wire.Code(resp[0]) != wire.Late || time.Since(begin) > testseed.Patience() {
			t.Fatalf("after %d calls, in %v: code %d: %q", n, time.Since(begin), resp[0], resp[1:])
		}
	}
}

// stallingProxy forwards connections to a server, and stops to at times.
type stallingProxy struct {
	net.Listener
	mu sync.RWMutex // held while it stalls
}

func newStallingProxy(t *testing.T, to string) *stallingProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &stallingProxy{Listener: l}
	var running sync.WaitGroup
	forward := func(dst, src net.Conn) {
		defer dst.Close()
		defer src.Close()
		b := make([]byte, 1<<16)
		for {
			n, err := src.Read(b)
			p.mu.RLock()
			_, werr := dst.Write(b[:n])
			p.mu.RUnlock()
			if err != nil || werr != nil {
				return
			}
		}
	}
	var mu sync.Mutex
	var conns []net.Conn
	running.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				in.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, in, out)
			mu.Unlock()
			running.Go(func() { forward(out, in) })
			running.Go(func() { forward(in, out) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
	return p
}

// TestReadsElsewhereEndWithTheirCaller: over every fabric, what a procedure reads at
// another server ends when its caller gives up, also over a connection that there was
// before, be it a READ or a request. The connection stays, and so do those of others.
func TestReadsElsewhereEndWithTheirCaller(t *testing.T) {
	plain := inproc.New(inproc.Options{})
	overTCP, err := tcp.New(tcp.Options{Pollers: 1})
	if err != nil {
		t.Fatal(err)
	}
	overShm, err := shm.New(shm.Options{Pollers: 1})
	if err != nil && !errors.Is(err, rdma.ErrUnsupported) {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		provider rdma.Provider
		reads    exec.ReadPath
	}{
		{"inproc", plain, exec.OrderedByRPC},
		{"inproc, without a connection", plain, exec.OrderedByRPC},
		{"shm", overShm, exec.OrderedByRPC},
		{"tcp", overTCP, exec.OrderedByRPC},
		{"tcp READs", overTCP, exec.OneSided},
	} {
		t.Run(c.name, func(t *testing.T) {
			if p, ok := c.provider.(*shm.Provider); ok && p == nil {
				t.Skip("no shm on this system")
			}
			cat := bank(t)
			entry := cat.MustTable("entry")
			addrs := []string{"server-0", "server-1"}
			switch c.provider {
			case overTCP:
				addrs = []string{testaddr.Free(t), testaddr.Free(t)}
			case overShm:
				addrs = []string{"@" + t.Name() + "-0", "@" + t.Name() + "-1"}
			}
			held, release := make(chan struct{}, 1), make(chan struct{})
			var servers []*Server
			var proxy *stallingProxy
			for i := range 2 {
				cfg := Config{
					Index: i, Addrs: addrs, Catalog: cat, Provider: c.provider, MemoryBytes: 1 << 26,
					Procedures: []txn.Procedure{
						{Name: "read", Body: func(_ context.Context, x *txn.Txn, args []byte) ([]byte, error) {
							_, err := x.Get(entry, entryAt(1, uint64(args[0])))
							if errors.Is(err, txn.ErrNotFound) {
								err = nil
							}
							return nil, err
						}},
						{Name: "hold", Body: func(context.Context, *txn.Txn, []byte) ([]byte, error) {
							held <- struct{}{}
							<-release
							return nil, nil
						}},
					},
				}
				if i == 0 && c.provider == overTCP {
					proxy = newStallingProxy(t, addrs[1])
					cfg.Addrs = []string{addrs[0], proxy.Addr().String()}
				}
				s, err := New(cfg)
				if err == nil {
					err = s.Start()
				}
				testseed.SkipUnshared(t, err)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				servers = append(servers, s)
			}
			s := servers[0]
			var dials atomic.Int64
			dial := func(ctx context.Context, addr string) (rdma.Conn, error) {
				dials.Add(1)
				return s.cfg.Provider.Dial(ctx, addr)
			}
			db, err := exec.OpenLocal(t.Context(), exec.Config{Servers: s.cfg.Addrs, AllServers: true, Dial: dial, Reads: c.reads}, allPartitions{&s.parts, s.clocks.running})
			if err != nil {
				t.Fatal(err)
			}
			s.client.db = db // the server closes it
			seq := uint64(0)
			read := func(left time.Duration) wire.Code {
				seq++
				return wire.Code(handCall(s, wire.ID{Client: 1, Seq: seq}, left, 0, "read", []byte{byte(seq)}).wait(t)[0])
			}
			connected := !strings.Contains(c.name, "without")
			if connected {
				if code := read(0); code != wire.OK {
					t.Fatalf("code %d", code)
				}
			}
			before := dials.Load()
			var stall, goOn func()
			switch {
			case proxy != nil:
				stall, goOn = proxy.mu.Lock, proxy.mu.Unlock
			case c.provider == plain:
				stall, goOn = func() { err = plain.Pause("server-1") }, func() { err = plain.Resume("server-1") }
			default: // its only poller
				client, oerr := txn.Open(t.Context(), txn.Config{Servers: addrs, Dial: c.provider.Dial})
				if oerr != nil {
					t.Fatal(oerr)
				}
				defer client.Close()
				called := make(chan struct{})
				stall = func() {
					go func() {
						defer close(called)
						_, _ = client.Call(context.Background(), 1, "hold", nil)
					}()
					<-held
				}
				goOn = func() { close(release); <-called }
			}
			stall()
			begin := time.Now()
			code := read(30 * time.Millisecond)
			stalled := time.Since(begin)
			eventually(t, "no procedure runs that is over", func() bool { return s.runningElsewhere() == 0 })
			goOn()
			if err != nil {
				t.Fatal(err)
			}
			if code != wire.Late {
				t.Errorf("a read at a server that is silent: code %d after %v, want %d", code, stalled, wire.Late)
			}
			if code := read(0); code != wire.OK {
				t.Errorf("afterwards: code %d", code)
			}
			if n := dials.Load() - before; connected && n > 0 && time.Since(begin) < 500*time.Millisecond { // a late answer is not waited for without end
				t.Errorf("a read that was given up cost %d connections", n)
			}
		})
	}
}

// TestCallTime: the context of a procedure keeps the contract of contexts.
func TestCallTime(t *testing.T) {
	parent, stop := context.WithCancel(context.WithValue(context.Background(), callTimeKey{}, 7))
	made := func(left time.Duration) *callTime {
		c := &callTime{Context: parent, ends: clock.Fast() + left, late: tooLate}
		t.Cleanup(c.end)
		return c
	}
	c := made(time.Hour)
	if c.Err() != nil || !ended(c).ok() || c.Value(callTimeKey{}) != 7 || c.armed != nil {
		t.Errorf("at first: %v, %+v, armed %v", c.Err(), ended(c), c.armed)
	}
	at, bounded := c.Deadline()
	if left := time.Until(at); !bounded || left < time.Hour-testseed.Patience() || left > time.Hour {
		t.Errorf("deadline in %v, %v", left, bounded)
	}
	if again, _ := c.Deadline(); again != at || c.Value(callTimeKey{}) != 7 {
		t.Errorf("deadline %v, then %v", at, again)
	}
	child, cancel := context.WithCancel(c)
	defer cancel()
	short := made(time.Millisecond)
	select {
	case <-short.Done():
	case <-time.After(testseed.Patience()):
		t.Error("a deadline does not come")
	}
	own := made(time.Millisecond)
	own.own, own.late = true, tooLong
	if at, bounded := own.Deadline(); bounded {
		t.Errorf("the server's bound is a deadline, %v", at)
	}
	<-own.Done()
	if own.Err() != context.DeadlineExceeded || ended(own).code != wire.Unavailable {
		t.Errorf("after the server's bound: %v, %+v", own.Err(), ended(own))
	}
	passed := made(-time.Second)
	for _, c := range []*callTime{short, passed} {
		if c.Err() != context.DeadlineExceeded || ended(c).code != wire.Late {
			t.Errorf("after the deadline: %v, %+v", c.Err(), ended(c))
		}
		select {
		case <-c.Done():
		default:
			t.Error("an error, and not done")
		}
	}
	unarmed := made(time.Hour)
	stop()
	<-child.Done()
	for _, c := range []*callTime{c, unarmed} {
		if c.Err() != context.Canceled || ended(c).code != wire.Unavailable {
			t.Errorf("after the server: %v, %+v", c.Err(), ended(c))
		}
	}
	if short.Err() != context.DeadlineExceeded { // it stays what it was
		t.Errorf("%v, want %v", short.Err(), context.DeadlineExceeded)
	}
}

type callTimeKey struct{}
