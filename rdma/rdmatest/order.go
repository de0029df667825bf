package rdmatest

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/internal/mem"
	"drtmx/internal/rng"
	"drtmx/rdma"
)

var orderCases = []Case{
	{"OrderHeaderBeforeAndAfterProvesBody", caseOrderHeader},
	{"OrderLoadsAscend", caseOrderAscend},
	{"OrderWordsAreWhole", caseOrderWords},
	{"OrderOfOneConnectionIsAsClaimedByAll", caseOrderClaim},
}

// soak is the minimum duration of the cases with concurrent writers; they
// continue until they have seen enough.
const soak = 150 * time.Millisecond

// HeaderLock is the bit of a BlockWriter's header that is set while it changes
// the block. The rest of the header is a version that never repeats.
const HeaderLock = 1 << 63

// BlockWriter changes the block in a span, by the writer's rule of
// remotely readable blocks: header locked, words in ascending order, header
// unlocked. Word i of the body carries BodyWord(header, i).
type BlockWriter struct {
	Span mem.Span
	// Yield, if set, is called before each store of a change, so that readers
	// meet half-written blocks even where one processor does all the work.
	Yield func()
	seq   uint64
}

// Next makes the next version. Between versions the block is quiet.
func (w *BlockWriter) Next() {
	w.seq++
	w.Span.Store(0, w.seq|HeaderLock)
	for i := 1; i < w.Span.Words(); i++ {
		w.yield()
		w.Span.Store(i, BodyWord(w.seq, i))
	}
	w.yield()
	w.Span.Store(0, w.seq)
}

func (w *BlockWriter) yield() {
	if w.Yield != nil {
		w.Yield()
	}
}

// BodyWord returns the value that BlockWriter stores in word i under an
// unlocked header.
func BodyWord(header uint64, i int) uint64 { return header*0x9e3779b97f4a7c15 + uint64(i) }

// TornAt returns the index of the first body word of a block that does not
// match its header, or 0.
func TornAt(buf []uint64) int {
	for i := 1; i < len(buf); i++ {
		if buf[i] != BodyWord(buf[0], i) {
			return i
		}
	}
	return 0
}

// rest yields a random number of times, mostly few.
func rest(s *rng.Stream) {
	for range s.Intn(1 << s.Intn(9)) {
		runtime.Gosched()
	}
}

// hiccup yields once in a while.
func hiccup(s *rng.Stream) {
	if s.Intn(64) == 0 {
		runtime.Gosched()
	}
}

// background runs step, resting in between, until the returned function has
// stopped it.
func (r *rig) background(s *rng.Stream, step func()) (stop func()) {
	var done atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for !done.Load() {
			step()
			rest(s)
		}
	})
	stop = sync.OnceFunc(func() {
		done.Store(true)
		wg.Wait()
	})
	r.Cleanup(stop)
	return stop
}

// readWhile repeats a batch for the soak time and until enough returns true,
// which means that READs met the writer at work. It sometimes yields, so that
// the writer can run.
func (r *rig) readWhile(c rdma.Conn, b *rdma.Batch, look func(*rdma.WR), enough func() bool) {
	r.Helper()
	start, s := time.Now(), r.rng.Split("reader")
	for time.Since(start) < soak || !enough() {
		if time.Since(start) > patience {
			r.Fatalf("%v of READs did not show enough", patience)
		}
		r.do(c, b)
		hiccup(s)
		for i := range b.WRs {
			look(&b.WRs[i])
		}
	}
}

func caseOrderHeader(r *rig) {
	e, m, k := r.server()
	c := r.dial(e)
	if !c.InOrder() {
		r.Skipf("provider %s does not claim InOrder", r.f.Provider.Name())
	}
	sizes := []uint64{8, 16, 64, 256}
	s := r.rng.Split("writer")
	var writers []*BlockWriter
	var b rdma.Batch
	for i, n := range sizes {
		at := uint64(i+1) * 4096
		w := &BlockWriter{Span: m.MustSpan(at, n*mem.WordBytes), Yield: func() { hiccup(s) }}
		w.Next()
		writers = append(writers, w)
		b.Read(k, at, make([]uint64, n))
	}
	r.background(s, func() { writers[s.Intn(len(writers))].Next() })
	accepted, refused := 0, 0
	r.readWhile(c, &b, func(wr *rdma.WR) {
		if wr.Tail != wr.Buf[0] || wr.Buf[0]&HeaderLock != 0 {
			refused++
			return
		}
		accepted++
		if i := TornAt(wr.Buf); i != 0 {
			r.Fatalf("torn block of %d words: header %#x before and after, but word %d is not of that version; the provider does not load in order",
				len(wr.Buf), wr.Buf[0], i)
		}
	}, func() bool { return accepted >= 100 && refused >= 20 })
	r.Logf("%d blocks accepted, %d refused", accepted, refused)
}

// caseOrderAscend has a writer count words up from the last to the first: a
// reader that loads in ascending order sees counts that do not decrease.
func caseOrderAscend(r *rig) {
	e, m, k := r.server()
	c := r.dial(e)
	if !c.InOrder() {
		r.Skipf("provider %s does not claim InOrder", r.f.Provider.Name())
	}
	const words = 64
	span := m.MustSpan(4096, words*mem.WordBytes)
	span.Zero()
	var v uint64
	s := r.rng.Split("writer")
	r.background(s, func() {
		v++
		for i := words - 1; i >= 0; i-- {
			hiccup(s)
			span.Store(i, v)
		}
	})
	var b rdma.Batch
	b.Read(k, 4096, make([]uint64, words))
	midway := 0 // READs that met the writer at work
	r.readWhile(c, &b, func(wr *rdma.WR) {
		for i := 1; i < words; i++ {
			if wr.Buf[i] < wr.Buf[i-1] {
				r.Fatalf("word %d was loaded before word %d", i, i-1)
			}
		}
		if wr.Tail < wr.Buf[0] {
			r.Fatalf("Tail %d was loaded before word 0, which is %d", wr.Tail, wr.Buf[0])
		}
		if wr.Buf[0] != wr.Buf[words-1] {
			midway++
		}
	}, func() bool { return midway >= 20 })
}

func caseOrderWords(r *rig) {
	e, m, k := r.server()
	c := r.dial(e)
	const words = 32
	span := m.MustSpan(4096, words*mem.WordBytes)
	span.Zero()
	on := ^uint64(0)
	s := r.rng.Split("writer")
	r.background(s, func() {
		for i := range words {
			hiccup(s)
			span.Store(i, on)
		}
		on = ^on
	})
	var b rdma.Batch
	b.Read(k, 4096, make([]uint64, words))
	seen := map[uint64]int{}
	r.readWhile(c, &b, func(wr *rdma.WR) {
		for i, v := range wr.Buf {
			if v != 0 && v != ^uint64(0) {
				r.Fatalf("word %d is torn: %#x", i, v)
			}
		}
		seen[wr.Buf[0]]++
	}, func() bool { return len(seen) == 2 })
}

func caseOrderClaim(r *rig) {
	e, _, _ := r.server()
	first := r.dial(e).InOrder()
	for range 3 {
		if r.dial(e).InOrder() != first {
			r.Fatal("two connections to one endpoint differ in InOrder")
		}
	}
}
