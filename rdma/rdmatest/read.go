package rdmatest

import (
	"errors"

	"drtmx/internal/mem"
	"drtmx/internal/rng"
	"drtmx/rdma"
)

var readCases = []Case{
	{"ReadContentAtEveryAlignment", caseReadAlignments},
	{"ReadContentAtRandom", caseReadRandom},
	{"ReadAtSegmentBorders", caseReadBorders},
	{"ReadOfLargestSize", caseReadLargest},
	{"ReadAfterRegionGrew", caseReadGrown},
	{"ReadOfSeveralRegions", caseReadRegions},
	{"ReadOfRegionRegisteredLater", caseReadLaterRegion},
	{"ReadSeesEarlierStores", caseReadFresh},
	{"BatchOfEverySize", caseBatchSizes},
	{"BatchEmptyOrTooLargeIsRefused", caseBatchRefused},
	{"BatchesOnTwoConnectionsTogether", caseBatchesTwoConns},
	{"BatchesOnOneConnectionTogether", caseBatchesOneConn},
	{"BatchReused", caseBatchReused},
}

// canary guards the words before and after a READ's buffer.
const canary = 0xdeadbeefcafef00d

// guarded returns a buffer of n words between canaries, and a check of them.
func guarded(r *rig, n int) ([]uint64, func()) {
	all := make([]uint64, n+2)
	all[0], all[n+1] = canary, canary
	return all[1 : n+1], func() {
		r.Helper()
		if all[0] != canary || all[n+1] != canary {
			r.Fatalf("a READ of %d words wrote outside its buffer", n)
		}
	}
}

func (r *rig) checkPattern(buf []uint64, addr uint64) {
	r.Helper()
	if i, ok := HasPattern(buf, addr); !ok {
		a := addr + uint64(i)*mem.WordBytes
		r.Fatalf("READ of %d words at %#x: word %d is %#x, want %#x", len(buf), addr, i, buf[i], Pattern(a))
	}
}

// checkTail holds in-order connections to filling Tail of quiet memory.
func (r *rig) checkTail(c rdma.Conn, b *rdma.Batch) {
	r.Helper()
	if !c.InOrder() {
		return
	}
	for i := range b.WRs {
		if wr := &b.WRs[i]; wr.Op == rdma.OpRead && wr.Status == rdma.StatusOK && wr.Tail != wr.Buf[0] {
			r.Fatalf("request %d: Tail is %#x and word 0 %#x, of memory nobody writes", i, wr.Tail, wr.Buf[0])
		}
	}
}

func caseReadAlignments(r *rig) {
	e, _, k := r.server()
	c := r.dial(e)
	var b rdma.Batch
	for at := uint64(0); at < 16; at++ {
		b.Reset()
		var checks []func()
		for n := 1; n <= 40; n++ {
			buf, check := guarded(r, n)
			checks = append(checks, check)
			b.Read(k, 4096+at*mem.WordBytes, buf)
		}
		r.do(c, &b)
		for i := range b.WRs {
			r.checkPattern(b.WRs[i].Buf, b.WRs[i].Addr)
			checks[i]()
		}
		r.checkTail(c, &b)
	}
}

func caseReadRandom(r *rig) {
	e, _, k := r.server()
	c := r.dial(e)
	var b rdma.Batch
	for range 50 {
		b.Reset()
		for range 1 + r.rng.Intn(32) {
			n := 1 + r.rng.Uint64n(1<<r.rng.Intn(12))
			at := r.rng.Uint64n(segmentBytes/mem.WordBytes - n + 1)
			b.Read(k, r.rng.Uint64n(2)*segmentBytes+at*mem.WordBytes, make([]uint64, n))
		}
		r.do(c, &b)
		for i := range b.WRs {
			r.checkPattern(b.WRs[i].Buf, b.WRs[i].Addr)
		}
		r.checkTail(c, &b)
	}
}

func caseReadBorders(r *rig) {
	e, m, k := r.server()
	c := r.dial(e)
	var b rdma.Batch
	for _, n := range []uint64{1, 2, 7, 8, 9, 64, segmentBytes / mem.WordBytes} {
		for end := uint64(segmentBytes); end <= m.Size(); end += segmentBytes {
			b.Read(k, end-n*mem.WordBytes, make([]uint64, n)) // up to the border
			b.Read(k, end-segmentBytes, make([]uint64, n))    // from the border
		}
	}
	r.do(c, &b)
	for i := range b.WRs {
		r.checkPattern(b.WRs[i].Buf, b.WRs[i].Addr)
	}
}

func caseReadLargest(r *rig) {
	e := r.listen(rdma.ListenOptions{})
	k := r.register(e, r.regionOf(1, 2*rdma.MaxReadBytes), rdma.AccessRead)
	r.check(e.Serve(Echo))
	c := r.dial(e)
	var b rdma.Batch
	buf, check := guarded(r, rdma.MaxReadBytes/mem.WordBytes)
	for _, at := range []uint64{0, 8, 4096, rdma.MaxReadBytes} {
		b.Reset()
		clear(buf)
		b.Read(k, at, buf)
		r.do(c, &b)
		r.checkPattern(buf, at)
		check()
	}
	b.Reset()
	for i := range uint64(4) { // more than any buffer between the two holds
		b.Read(k, 64*i, make([]uint64, rdma.MaxReadBytes/mem.WordBytes))
	}
	r.do(c, &b)
	for i := range b.WRs {
		r.checkPattern(b.WRs[i].Buf, b.WRs[i].Addr)
	}
}

func caseReadGrown(r *rig) {
	e, m, k := r.server()
	c := r.dial(e)
	for range 4 {
		end := m.Size()
		var b rdma.Batch
		b.Read(k, end, make([]uint64, 8))
		if err := rdma.Do(r.ctx, c, &b); !errors.Is(err, rdma.ErrAccess) {
			r.Fatalf("READ past the end of the region: %v, want ErrAccess", err)
		}
		off, err := m.Grow()
		r.check(err)
		FillPattern(m, off, segmentBytes)
		r.do(c, &b)
		r.checkPattern(b.WRs[0].Buf, end)
	}
	var b rdma.Batch
	for off := uint64(0); off < m.Size(); off += segmentBytes {
		b.Read(k, off+segmentBytes-64, make([]uint64, 8))
	}
	r.do(c, &b)
	for i := range b.WRs {
		r.checkPattern(b.WRs[i].Buf, b.WRs[i].Addr)
	}
}

func caseReadRegions(r *rig) {
	e := r.listen(rdma.ListenOptions{})
	keys := make(map[rdma.RKey]uint64)
	for i := range uint64(5) {
		m := r.region(1)
		m.MustSpan(64, 64).Store(0, i)
		k := r.register(e, m, rdma.AccessRead)
		if _, twice := keys[k]; twice {
			r.Fatalf("rkey %d was given to two regions", k)
		}
		keys[k] = i
	}
	r.check(e.Serve(Echo))
	c := r.dial(e)
	var b rdma.Batch
	for k := range keys {
		b.Read(k, 64, make([]uint64, 8))
	}
	r.do(c, &b)
	for i := range b.WRs {
		if wr := &b.WRs[i]; wr.Buf[0] != keys[wr.RKey] {
			r.Errorf("rkey %d reads region %d, want %d", wr.RKey, wr.Buf[0], keys[wr.RKey])
		}
	}
}

func caseReadLaterRegion(r *rig) {
	e, _, k := r.server()
	c := r.dial(e)
	r.load(c, k, 64)
	m := r.region(1)
	m.MustSpan(64, 8).Store(0, 4711)
	later := r.register(e, m, rdma.AccessRead)
	if v := r.load(c, later, 64); v != 4711 {
		r.Errorf("a region registered after the client connected reads %d, want 4711", v)
	}
	if v := r.load(c, k, 64); v != Pattern(64) {
		r.Errorf("the first region reads %#x after a second one was registered", v)
	}
}

func caseReadFresh(r *rig) {
	e := r.listen(rdma.ListenOptions{})
	m := r.region(1)
	k := r.register(e, m, rdma.AccessRead)
	s := m.MustSpan(128, 64)
	served := uint64(0)
	r.check(e.Serve(func(q *rdma.Request) {
		served++
		s.Store(1, served)
		_ = q.Reply(nil)
	}))
	c := r.dial(e)
	for i := range uint64(200) {
		s.Store(0, i)
		if v := r.load(c, k, 128); v != i {
			r.Fatalf("READ gives %d after %d was stored", v, i)
		}
		if i%10 != 0 {
			continue
		}
		_, err := rdma.Call(r.ctx, c, nil, nil)
		r.check(err)
		if v := r.load(c, k, 136); v != i/10+1 {
			r.Fatalf("READ after a call gives %d, the handler stored %d", v, i/10+1)
		}
	}
}

func caseBatchSizes(r *rig) {
	e, _, k := r.server()
	c := r.dial(e)
	var b rdma.Batch
	for _, n := range []int{1, 2, 3, 7, 16, 63, 64, 65, 255, 1000, rdma.MaxBatch} {
		b.Reset()
		for i := range n {
			if at := b.Read(k, uint64(i%1000)*mem.WordBytes, make([]uint64, 1+i%8)); at != i {
				r.Fatalf("Read returned index %d, want %d", at, i)
			}
		}
		r.do(c, &b)
		for i := range b.WRs {
			if b.WRs[i].Status != rdma.StatusOK {
				r.Fatalf("batch of %d: request %d has status %d", n, i, b.WRs[i].Status)
			}
			r.checkPattern(b.WRs[i].Buf, b.WRs[i].Addr)
		}
		r.checkTail(c, &b)
	}
}

func caseBatchRefused(r *rig) {
	e, _, k := r.server()
	c := r.dial(e)
	var b rdma.Batch
	if err := c.Post(&b); err == nil {
		r.Error("an empty batch was posted")
	}
	buf := []uint64{canary}
	for range rdma.MaxBatch + 1 {
		b.Read(k, 64, buf)
	}
	if err := c.Post(&b); !errors.Is(err, rdma.ErrTooLarge) {
		r.Errorf("post of MaxBatch+1 requests: %v, want ErrTooLarge", err)
	}
	if buf[0] != canary {
		r.Error("a refused batch was performed")
	}
	if n := c.Counters(); n.Rounds != 0 || n.Reads != 0 {
		r.Errorf("refused batches were counted: %+v", n)
	}
	if v := r.load(c, k, 64); v != Pattern(64) {
		r.Errorf("after refused batches a READ gives %#x", v)
	}
}

func caseBatchesTwoConns(r *rig) {
	e1, _, k1 := r.server()
	e2, _, k2 := r.server()
	c1, c2 := r.dial(e1), r.dial(e2)
	for range 50 {
		var b1, b2 rdma.Batch
		for i := range uint64(16) {
			b1.Read(k1, i*512, make([]uint64, 64))
			b2.Read(k2, i*1024, make([]uint64, 8))
		}
		r.check(c1.Post(&b1))
		r.check(c2.Post(&b2))
		if r.rng.Bool(0.5) {
			r.check(c2.Wait(r.ctx, &b2))
			r.check(c1.Wait(r.ctx, &b1))
		} else {
			r.check(c1.Wait(r.ctx, &b1))
			r.check(c2.Wait(r.ctx, &b2))
		}
		for i := range b1.WRs {
			r.checkPattern(b1.WRs[i].Buf, b1.WRs[i].Addr)
			r.checkPattern(b2.WRs[i].Buf, b2.WRs[i].Addr)
		}
	}
}

func caseBatchesOneConn(r *rig) {
	e, _, k := r.server()
	c := r.dial(e)
	const inFlight = 5
	batches := make([]rdma.Batch, inFlight)
	order := make([]int, inFlight)
	for range 20 {
		for j := range batches {
			batches[j].Reset()
			for i := range uint64(1 + r.rng.Intn(16)) {
				batches[j].Read(k, uint64(j)*4096+i*64, make([]uint64, 8))
			}
			r.check(c.Post(&batches[j]))
		}
		rng.Perm(r.rng, order, 0)
		for _, j := range order {
			r.check(c.Wait(r.ctx, &batches[j]))
			for i := range batches[j].WRs {
				r.checkPattern(batches[j].WRs[i].Buf, batches[j].WRs[i].Addr)
			}
		}
	}
}

func caseBatchReused(r *rig) {
	e, m, k := r.server()
	c, d := r.dial(e), r.dial(e)
	var b rdma.Batch
	b.Read(k, 64, make([]uint64, 8))
	b.Read(k, 1024, make([]uint64, 8))
	for i := range uint64(20) { // the same batch again, on either connection
		m.MustSpan(64, 8).Store(0, i)
		conn := c
		if r.rng.Bool(0.5) {
			conn = d
		}
		r.do(conn, &b)
		if b.WRs[0].Buf[0] != i {
			r.Fatalf("round %d of a reused batch read %d", i, b.WRs[0].Buf[0])
		}
		r.checkPattern(b.WRs[1].Buf, 1024)
	}
}
