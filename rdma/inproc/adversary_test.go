package inproc

import (
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/mem"
	"drtmx/internal/rng"
	"drtmx/rdma"
	"drtmx/rdma/rdmatest"
)

// loadOrder records in which order a READ of n words loads them: a yield
// follows every word, and the test numbers the words in memory by it.
func loadOrder(t *testing.T, f Faults, n int) []uint64 {
	f.Pause = 1
	var b *bed
	step := uint64(0)
	b = newBed(t, Options{Faults: f, Seed: 42, Yield: func() {
		step++
		if b != nil {
			s := b.m.MustSpan(64, uint64(n)*mem.WordBytes)
			for i := range n {
				s.Store(i, step)
			}
		}
	}}, nil)
	var wrs rdma.Batch
	wrs.Read(b.key, 64, make([]uint64, n))
	b.check(rdma.Do(b.ctx, b.c, &wrs))
	return wrs.WRs[0].Buf
}

func TestReadOrders(t *testing.T) {
	steps := loadOrder(t, Faults{}, 64)
	for i := 1; i < len(steps); i++ {
		if steps[i] != steps[i-1]+1 {
			t.Fatalf("in order, word %d was loaded at step %d and word %d at %d", i-1, steps[i-1], i, steps[i])
		}
	}
	steps = loadOrder(t, Faults{Scramble: 1}, 64)
	seen, descents := map[uint64]bool{}, 0
	for i, s := range steps {
		seen[s] = true
		if i > 0 && s < steps[i-1] {
			descents++
		}
	}
	if len(seen) != 64 || descents < 10 {
		t.Errorf("scrambled, 64 words were loaded at %d different steps, with %d descents", len(seen), descents)
	}
}

func TestScrambledOrdersArePermutations(t *testing.T) {
	a := newAdversary(&Options{}, rng.New(rdmatest.Seed(t)))
	for n := 1; n < 100; n++ {
		for addr := uint64(0); addr < 128; addr += 8 {
			seen := make([]bool, n)
			for _, i := range a.scrambled(addr, n) {
				if seen[i] {
					t.Fatalf("%d words at %d: word %d twice", n, addr, i)
				}
				seen[i] = true
			}
			for i, ok := range seen {
				if !ok {
					t.Fatalf("%d words at %d: word %d never", n, addr, i)
				}
			}
		}
	}
}

func TestInOrderIsClaimedWithoutScrambleOnly(t *testing.T) {
	for _, c := range []struct {
		f    Faults
		want bool
	}{{Faults{}, true}, {Faults{Pause: 1, Reorder: 1, Defer: 1, Delay: 1}, true}, {Faults{Scramble: 0.01}, false}} {
		b := newBed(t, Options{Faults: c.f}, nil)
		if got := b.c.InOrder(); got != c.want {
			t.Errorf("%+v: InOrder %v", c.f, got)
		}
		if got := rdma.Unordered(b.n.As(rdma.Identity{})); got == c.want {
			t.Errorf("%+v: Unordered %v", c.f, got)
		}
	}
}

func TestDeferredRequestsSeeLaterStores(t *testing.T) {
	b := newBed(t, Options{Faults: Faults{Defer: 1}}, nil)
	var wrs rdma.Batch
	buf := make([]uint64, 1)
	wrs.Read(b.key, 64, buf)
	b.check(b.c.Post(&wrs))
	b.m.MustSpan(64, 8).Store(0, 7)
	b.check(b.c.Wait(b.ctx, &wrs))
	if buf[0] != 7 {
		t.Errorf("a READ put off to Wait gives %d", buf[0])
	}
}

func TestReorderedBatchIsDoneCompletely(t *testing.T) {
	b := newBed(t, Options{Faults: Faults{Reorder: 1}, Seed: rdmatest.Seed(t)}, nil)
	descents := 0
	for n := 1; n < 40; n++ {
		var wrs rdma.Batch
		old := make([]uint64, n)
		b.m.MustSpan(64, 8).Store(0, 0)
		for i := range n {
			wrs.FAA(b.key, 64, 1, old[i:i+1])
		}
		b.check(rdma.Do(b.ctx, b.c, &wrs))
		if v := b.m.MustSpan(64, 8).Load(0); v != uint64(n) {
			t.Fatalf("%d FAAs added %d", n, v)
		}
		for i := 1; i < n; i++ {
			if old[i] < old[i-1] {
				descents++
			}
		}
	}
	if descents == 0 {
		t.Error("batches were always performed in order")
	}
}

func TestDelayIsDrawn(t *testing.T) {
	clock := &handClock{}
	b := newBed(t, Options{Clock: clock, Faults: Faults{Delay: 0.5, MaxDelay: time.Second}, Seed: 1}, nil)
	var delays, none int
	for range 50 {
		start := clock.Now()
		var wrs rdma.Batch
		wrs.Read(b.key, 64, make([]uint64, 1))
		b.check(rdma.Do(b.ctx, b.c, &wrs))
		_, err := rdma.Call(b.ctx, b.c, nil, nil)
		b.check(err)
		switch d := clock.Now() - start; {
		case d == 0:
			none++
		case d <= 2*time.Second:
			delays++
		default:
			t.Fatalf("delayed by %v", d)
		}
	}
	if delays == 0 || none == 0 {
		t.Errorf("%d rounds delayed, %d not", delays, none)
	}
}

func TestDropAtVerb(t *testing.T) {
	b := newBed(t, Options{Faults: Faults{DropVerb: 1}, Seed: rdmatest.Seed(t)}, nil)
	performed := 0
	for range 50 {
		c := b.dial()
		b.m.MustSpan(64, 16).Zero()
		var wrs rdma.Batch
		wrs.FAA(b.key, 64, 1, make([]uint64, 1))
		wrs.FAA(b.key, 72, 1, make([]uint64, 1))
		b.wantErr("batch", rdma.Do(b.ctx, c, &wrs), rdma.ErrPeerDown)
		for i := range wrs.WRs {
			if s := wrs.WRs[i].Status; s != rdma.StatusPeerDown {
				t.Fatalf("request %d has status %d", i, s)
			}
		}
		performed += int(b.m.MustSpan(64, 8).Load(0))
		if b.m.MustSpan(72, 8).Load(0) != 0 {
			t.Fatal("a request after the drop was performed")
		}
		b.wantErr("Post", c.Post(&wrs), rdma.ErrPeerDown)
	}
	if performed == 0 || performed == 50 {
		t.Errorf("of 50 requests at which the connection broke %d were performed", performed)
	}
}

// TestOrderedBatchesBreakInOrder: whenever a connection breaks in an ordered batch, and whatever
// takes effect late, the WRITEs that have are the first ones, and only the last of them may lack
// words at its end. Of an unordered batch others remain, too: the test could fail.
func TestOrderedBatchesBreakInOrder(t *testing.T) {
	const writes, words = 6, 5
	broken, parts, holes := 0, 0, 0
	for seed := range uint64(240) {
		ordered := seed%3 > 0
		f := Faults{DropVerb: 0.1, Late: 0.8, Defer: 0.4, Reorder: 0.5, DropAfter: 0.1}
		b := newBed(t, Options{Faults: f, Seed: seed}, nil)
		var wrs rdma.Batch
		wrs.Ordered = ordered
		for i := range uint64(writes) {
			src := make([]uint64, words)
			for j := range src {
				src[j] = i + 1
			}
			wrs.Write(b.key, 64+i*256, src)
			if i == 2 {
				wrs.Read(b.key, 64, make([]uint64, 2))
			}
		}
		if err := b.c.Post(&wrs); err == nil && seed%5 == 0 {
			b.check(b.c.Close()) // with all that was put off
		}
		if b.c.Wait(b.ctx, &wrs) != nil {
			broken++
		}
		look := func() (done, part int, rest bool) { // WRITEs done from the first on, words of the next, and others behind
			for i := range uint64(writes) {
				s, n := b.m.MustSpan(64+i*256, words*8), 0
				for n < words && s.Load(n) == i+1 {
					n++
				}
				for j := n; j < words; j++ {
					rest = rest || s.Load(j) != 0 // behind a word that is lacking
				}
				switch {
				case n == words && done == int(i) && part == 0:
					done++
				case n > 0 && part == 0 && done == int(i):
					part = n
				case n > 0:
					rest = true
				}
			}
			return done, part, rest
		}
		last := 0
		for range 12 {
			done, part, rest := look()
			if ordered && (rest || done < last) {
				t.Fatalf("seed %d: %d WRITEs, %d words of the next, and others: %v; before there were %d", seed, done, part, rest, last)
			}
			if last = done; part > 0 {
				parts++
			}
			if !ordered && rest {
				holes++
			}
			if c, err := b.n.Dial(b.ctx, "server"); err == nil { // late requests are performed when others post
				var r rdma.Batch
				r.Read(b.key, 0, make([]uint64, 1))
				_ = rdma.Do(b.ctx, c, &r)
				b.check(c.Close())
			}
		}
	}
	if broken < 40 || parts == 0 || holes == 0 {
		t.Errorf("%d broken batches, %d WRITEs seen in part, %d unordered batches with holes: this test shows nothing", broken, parts, holes)
	}
}

func TestLateWrites(t *testing.T) {
	b := newBed(t, Options{Faults: Faults{Late: 1, Defer: 1}}, nil)
	src := []uint64{9}
	var wrs rdma.Batch
	wrs.Write(b.key, 64, src)
	b.check(b.c.Post(&wrs))
	b.check(b.c.Close())
	b.wantErr("Wait", b.c.Wait(b.ctx, &wrs), rdma.ErrPeerDown)
	src[0] = 1000 // the client's again
	word := b.m.MustSpan(64, 8)
	if word.Load(0) != 0 {
		t.Fatal("the WRITE was performed before the connection broke")
	}
	c := b.dial()
	for word.Load(0) == 0 && b.ctx.Err() == nil {
		var r rdma.Batch
		r.Read(b.key, 128, make([]uint64, 1))
		b.check(rdma.Do(b.ctx, c, &r))
	}
	if v := word.Load(0); v != 9 {
		t.Errorf("the late WRITE stored %d", v)
	}
}

// Of a peer that was revoked nothing takes effect late, neither what was in flight when its
// connection broke nor what it still has to learn that it broke.
func TestNothingIsLateAfterRevoke(t *testing.T) {
	for _, first := range []string{"revoke", "close", "wait"} {
		b := newBed(t, Options{Faults: Faults{Late: 1, Defer: 1}}, nil)
		var wrs rdma.Batch
		wrs.Write(b.key, 64, []uint64{9})
		wrs.FAA(b.key, 72, 1, make([]uint64, 1))
		b.check(b.c.Post(&wrs))
		steps := map[string]func(){
			"revoke": func() { b.e.Revoke(b.c.peer) },
			"close":  func() { b.check(b.c.Close()) },
			"wait":   func() { b.wantErr("Wait", b.c.Wait(b.ctx, &wrs), rdma.ErrPeerDown) },
		}
		if first != "revoke" {
			steps["close"]()
			if first == "wait" {
				steps["wait"]()
			}
		}
		steps["revoke"]()
		if first != "wait" {
			steps["wait"]()
		}
		c := b.dial()
		for range 100 { // late requests are performed when others post
			var r rdma.Batch
			r.Read(b.key, 128, make([]uint64, 1))
			b.check(rdma.Do(b.ctx, c, &r))
		}
		if s := b.m.MustSpan(64, 16); s.Load(0) != 0 || s.Load(1) != 0 {
			t.Errorf("%s first: after Revoke the words are %d and %d", first, s.Load(0), s.Load(1))
		}
	}
}

func TestDropsAroundACall(t *testing.T) {
	for _, x := range []struct {
		name    string
		f       Faults
		handled int64
	}{
		{"before", Faults{DropBefore: 1}, 0},
		{"during", Faults{DropDuring: 1}, 1},
		{"after", Faults{DropAfter: 1}, 1},
	} {
		t.Run(x.name, func(t *testing.T) {
			var handled, gone atomic.Int64
			b := newBed(t, Options{Faults: x.f}, func(q *rdma.Request) {
				handled.Add(1)
				_ = q.Reply(q.Body)
			})
			b.e.opts.OnDisconnect = func(rdma.PeerID) { gone.Add(1) }
			c := b.dial()
			_, err := rdma.Call(b.ctx, c, []byte("x"), nil)
			b.wantErr("call", err, rdma.ErrPeerDown)
			b.waitFor("the disconnect", func() bool { return gone.Load() == 1 })
			b.waitFor("the handler", func() bool { return handled.Load() == x.handled })
		})
	}
}

func TestDuplicatesReachTheHandlerOnceMore(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{}
	var later []*rdma.Request
	b := newBed(t, Options{Faults: Faults{Duplicate: 1}, Seed: rdmatest.Seed(t)}, func(q *rdma.Request) {
		mu.Lock()
		body := string(q.Body)
		seen[body]++
		first := seen[body] == 1
		if first && len(seen)%3 == 0 { // leave the answer to the second delivery
			later = append(later, q)
			mu.Unlock()
			return
		}
		mu.Unlock()
		if err := q.Reply([]byte(body)); err != nil && !errors.Is(err, rdma.ErrPeerDown) {
			t.Errorf("reply to %q: %v", body, err)
		}
	})
	const calls = 60
	var resp []byte
	for i := range calls {
		req := fmt.Sprintf("call %d", i)
		var err error
		resp, err = rdma.Call(b.ctx, b.c, []byte(req), resp)
		b.check(err)
		if string(resp) != req {
			t.Fatalf("%s is answered %q", req, resp)
		}
		mu.Lock()
		for _, q := range later { // an old answer must not reach a newer call
			if err := q.Reply([]byte("stale")); err != nil {
				t.Errorf("stale reply: %v", err)
			}
		}
		later = nil
		mu.Unlock()
	}
	b.waitFor("the second deliveries", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, n := range seen {
			if n > 2 {
				t.Fatalf("a request was delivered %d times", n)
			}
			if n < 2 {
				return false
			}
		}
		return len(seen) == calls
	})
}

// replay runs a single-threaded schedule under every fault and hashes the
// client's results.
func replay(t *testing.T, seed uint64) uint64 {
	var m *mem.Region
	version := uint64(0)
	clock := &handClock{}
	f := Faults{
		Scramble: 0.5, Pause: 0.3, Reorder: 0.5, Defer: 0.5, Delay: 0.2, MaxDelay: time.Second, Late: 0.5,
		DropVerb: 0.01, DropBefore: 0.02, DropDuring: 0.02, DropAfter: 0.02, Duplicate: 0.2,
	}
	b := newBed(t, Options{Seed: seed, Faults: f, Clock: clock, Yield: func() {
		version++
		if m != nil {
			for i := range 32 {
				m.MustSpan(64, 256).Store(i, version)
			}
		}
	}}, nil)
	m = b.m
	h := fnv.New64a()
	c := b.c
	buf := make([]uint64, 32)
	for i := range 300 {
		var wrs rdma.Batch
		for range 1 + i%4 {
			wrs.Read(b.key, 64, buf)
		}
		wrs.FAA(b.key, 1024, 1, make([]uint64, 1))
		err := rdma.Do(b.ctx, c, &wrs)
		fmt.Fprintln(h, err, buf, wrs.WRs[0].Tail, wrs.WRs[len(wrs.WRs)-1].Buf)
		if err == nil {
			var resp []byte
			resp, err = rdma.Call(b.ctx, c, []byte{byte(i)}, nil)
			fmt.Fprintln(h, resp, err)
		}
		if err != nil {
			b.check(c.Close())
			c = b.dial()
		}
		fmt.Fprintln(h, clock.Now())
	}
	return h.Sum64()
}

func TestSeedReplaysSingleThreadedSchedule(t *testing.T) {
	seed := rdmatest.Seed(t)
	first := replay(t, seed)
	for range 3 {
		if again := replay(t, seed); again != first {
			t.Fatalf("seed %d gives %x and %x", seed, first, again)
		}
	}
	if other := replay(t, seed+1); other == first {
		t.Errorf("seeds %d and %d give the same", seed, seed+1)
	}
}

// TestSwarm runs random mixtures of faults with servers that die and pause. It
// checks what must hold under all faults: READs return stored words, an
// answered call was handled and got its own answer, and no call hangs.
func TestSwarm(t *testing.T) {
	root := rng.New(rdmatest.Seed(t))
	for i := range uint64(12) {
		s := root.SplitN(i)
		o := Options{Faults: Swarm(s, 0.1), Seed: s.Uint64(), Pollers: 1 + s.Intn(2)}
		t.Run(fmt.Sprint(i), func(t *testing.T) { swarm(t, o, s) })
	}
}

func swarm(t *testing.T, o Options, s *rng.Stream) {
	var handled sync.Map
	b := newBed(t, o, func(q *rdma.Request) {
		body := string(q.Body)
		handled.Store(body, true)
		if len(body)%4 == 0 {
			go func() { _ = q.Reply([]byte(body)) }()
			return
		}
		_ = q.Reply(q.Body)
	})
	rdmatest.FillPattern(b.m, 0, b.m.Size())
	var clients sync.WaitGroup
	for id := range uint64(3) {
		s := s.SplitN(id)
		clients.Go(func() {
			var c rdma.Conn
			for i := range 60 {
				if c == nil {
					var err error
					if c, err = b.n.Dial(b.ctx, "server"); err != nil {
						t.Error(err)
						return
					}
				}
				if err := swarmStep(c, b, s, fmt.Sprint(id, " ", i), &handled); err != nil {
					if !errors.Is(err, rdma.ErrPeerDown) {
						t.Errorf("faults %+v: %v", o.Faults, err)
					}
					_ = c.Close()
					c = nil
				}
			}
			if c != nil {
				_ = c.Close()
			}
		})
	}
	for range 5 {
		time.Sleep(200 * time.Microsecond)
		b.check(b.n.Pause("server"))
		time.Sleep(200 * time.Microsecond)
		b.check(b.n.Resume("server"))
	}
	clients.Wait()
}

// swarmStep performs a batch and a call, and checks their results if they
// succeeded.
func swarmStep(c rdma.Conn, b *bed, s *rng.Stream, body string, handled *sync.Map) error {
	var wrs rdma.Batch
	for range 1 + s.Intn(8) {
		wrs.Read(b.key, 8*s.Uint64n(4096), make([]uint64, 1+s.Intn(64)))
	}
	err := rdma.Do(b.ctx, c, &wrs)
	for i := range wrs.WRs {
		wr := &wrs.WRs[i]
		if at, ok := rdmatest.HasPattern(wr.Buf, wr.Addr); wr.Status == rdma.StatusOK && !ok {
			return fmt.Errorf("READ of %d words at %d: word %d is wrong", len(wr.Buf), wr.Addr, at)
		}
	}
	if err != nil {
		return err
	}
	resp, err := rdma.Call(b.ctx, c, []byte(body), nil)
	if err != nil {
		return err
	}
	if _, ok := handled.Load(body); !ok || string(resp) != body {
		return fmt.Errorf("call %q is answered %q, handled %v", body, resp, ok)
	}
	return nil
}
