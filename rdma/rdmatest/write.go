package rdmatest

import (
	"sync"

	"drtmx/internal/mem"
	"drtmx/rdma"
)

var writeCases = []Case{
	{"WriteContent", caseWriteContent},
	{"WriteWordsAreWhole", caseWriteWords},
	{"CompareAndSwap", caseCAS},
	{"FetchAndAdd", caseFAA},
	{"AtomicsFromManyClients", caseAtomicsContended},
	{"GrantsAreSeparate", caseGrants},
	{"UngrantedVerbsAreRefused", caseUngranted},
	{"OrderedBatch", caseOrdered},
	{"OrderedWritesAreSeenInOrder", caseOrderedSeen},
}

// writable is a server whose one region is granted a, and a connection to it.
func (r *rig) writable(a rdma.Access) (rdma.Endpoint, *mem.Region, rdma.RKey, rdma.Conn) {
	r.Helper()
	r.needs(a)
	e := r.listen(rdma.ListenOptions{})
	m := r.region(1)
	k := r.register(e, m, a)
	r.check(e.Serve(Echo))
	return e, m, k, r.dial(e)
}

func caseWriteContent(r *rig) {
	_, m, k, c := r.writable(rdma.AccessWrite)
	FillPattern(m, 0, m.Size())
	for _, n := range []uint64{1, 2, 7, 8, 9, 64, 1000, segmentBytes/mem.WordBytes - 2} {
		at := 8 * (1 + r.rng.Uint64n(segmentBytes/mem.WordBytes-n-1))
		src := make([]uint64, n)
		for i := range src {
			src[i] = r.rng.Uint64()
		}
		var b rdma.Batch
		b.Write(k, at, src)
		r.do(c, &b)
		got := m.MustSpan(at, n*mem.WordBytes)
		for i, v := range src {
			if got.Load(i) != v {
				r.Fatalf("WRITE of %d words at %#x: word %d is %#x, want %#x", n, at, i, got.Load(i), v)
			}
		}
		for _, a := range []uint64{at - 8, at + 8*n} {
			if a < m.Size() && m.MustSpan(a, 8).Load(0) != Pattern(a) {
				r.Fatalf("WRITE of %d words at %#x changed the word at %#x", n, at, a)
			}
		}
		FillPattern(m, 0, m.Size())
	}
}

func caseWriteWords(r *rig) {
	e, _, k, c := r.writable(rdma.AccessWrite)
	const words = 16
	on, off := make([]uint64, words), make([]uint64, words)
	for i := range on {
		on[i] = ^uint64(0)
	}
	var wb [2]rdma.Batch
	wb[0].Write(k, 4096, on)
	wb[1].Write(k, 4096, off)
	r.do(c, &wb[1])
	turn := 0
	stop := r.background(r.rng.Split("writer"), func() {
		if err := rdma.Do(r.ctx, c, &wb[turn&1]); err != nil {
			r.Error(err)
		}
		turn++
	})
	var b rdma.Batch
	b.Read(k, 4096, make([]uint64, words))
	seen := map[uint64]int{}
	r.readWhile(r.dial(e), &b, func(wr *rdma.WR) {
		for i, v := range wr.Buf {
			if v != 0 && v != ^uint64(0) {
				r.Fatalf("word %d of a WRITE is torn: %#x", i, v)
			}
			seen[v]++
		}
	}, func() bool { return len(seen) == 2 })
	stop() // before the connections close
}

// caseOrdered: in an ordered batch each request sees what those before it have done, and
// nothing of those after it.
func caseOrdered(r *rig) {
	_, m, k, c := r.writable(rdma.AccessWrite | rdma.AccessAtomic)
	const at = 4096
	m.MustSpan(at, 8).Store(0, 0)
	var b rdma.Batch
	before, written, swapped, added, all := make([]uint64, 1), make([]uint64, 1), make([]uint64, 1), make([]uint64, 1), make([]uint64, 3)
	wide, v := make([]uint64, 1000), make([]uint64, 1)
	last := uint64(0)
	for i := range 200 {
		n := uint64(i+1) << 8
		v[0] = n
		b.Reset()
		b.Ordered = true
		b.Read(k, at+8, wide) // takes long
		b.Read(k, at, before)
		b.Write(k, at, v)
		b.Read(k, at, written)
		b.CAS(k, at, n, n+1, swapped)
		b.FAA(k, at, 3, added)
		b.Read(k, at, all[:1])
		r.do(c, &b)
		if before[0] != last || written[0] != n || swapped[0] != n || added[0] != n+1 || all[0] != n+4 {
			r.Fatalf("batch %d: READ %#x, WRITE %#x, READ %#x, CAS %#x, FAA %#x, READ %#x; the word was %#x before",
				i, before[0], n, written[0], swapped[0], added[0], all[0], last)
		}
		last = all[0]
	}
}

// caseOrderedSeen: another connection that sees one WRITE of an ordered batch sees all that come
// before it.
func caseOrderedSeen(r *rig) {
	e, m, k, c := r.writable(rdma.AccessWrite)
	const writes, gap = 14, 4096
	place := func(i int) uint64 { return 4096 + uint64(i)*gap }
	for i := range writes {
		m.MustSpan(place(i), 8).Store(0, 0)
	}
	var wb rdma.Batch
	n, src := uint64(0), make([]uint64, writes)
	stop := r.background(r.rng.Split("writer"), func() {
		n++
		wb.Reset()
		wb.Ordered = true
		for i := range writes {
			src[i] = n
			wb.Write(k, place(i), src[i:i+1])
		}
		if err := rdma.Do(r.ctx, c, &wb); err != nil {
			r.Error(err)
		}
	})
	reader := r.dial(e)
	var b rdma.Batch
	late, early, seen := make([]uint64, 1), make([]uint64, 1), uint64(0)
	for round := 0; round < 200 || seen < 20; round++ {
		i := 1 + r.rng.Intn(writes-1)
		b.Reset()
		b.Read(k, place(i), late)
		r.do(reader, &b)
		b.Reset()
		b.Read(k, place(r.rng.Intn(i)), early)
		r.do(reader, &b)
		if early[0] < late[0] {
			r.Fatalf("WRITE %d of batch %d is seen, and one before it is still of batch %d", i, late[0], early[0])
		}
		seen = max(seen, late[0])
	}
	stop() // before the connections close
}

func caseCAS(r *rig) {
	_, m, k, c := r.writable(rdma.AccessAtomic)
	s := m.MustSpan(512, 8)
	s.Store(0, 5)
	old := make([]uint64, 1)
	for _, x := range []struct{ expect, swap, old, after uint64 }{
		{5, 6, 5, 6}, {5, 7, 6, 6}, {6, ^uint64(0), 6, ^uint64(0)}, {^uint64(0), 0, ^uint64(0), 0}, {0, 0, 0, 0},
	} {
		var b rdma.Batch
		b.CAS(k, 512, x.expect, x.swap, old)
		r.do(c, &b)
		if old[0] != x.old || s.Load(0) != x.after {
			r.Fatalf("CAS %d→%d: old %d, word now %d; want %d, %d", x.expect, x.swap, old[0], s.Load(0), x.old, x.after)
		}
	}
}

func caseFAA(r *rig) {
	_, m, k, c := r.writable(rdma.AccessAtomic)
	s := m.MustSpan(512, 8)
	s.Store(0, 5)
	old := make([]uint64, 1)
	for _, x := range []struct{ add, old, after uint64 }{{1, 5, 6}, {^uint64(0), 6, 5}, {0, 5, 5}, {1 << 63, 5, 1<<63 + 5}} {
		var b rdma.Batch
		b.FAA(k, 512, x.add, old)
		r.do(c, &b)
		if old[0] != x.old || s.Load(0) != x.after {
			r.Fatalf("FAA %d: old %d, word now %d; want %d, %d", x.add, old[0], s.Load(0), x.old, x.after)
		}
	}
}

func caseAtomicsContended(r *rig) {
	e, m, k, _ := r.writable(rdma.AccessAtomic)
	m.MustSpan(512, 16).Zero()
	const clients, rounds = 4, 100
	var wg sync.WaitGroup
	for range clients {
		c := r.dial(e)
		wg.Go(func() {
			var b rdma.Batch
			faa, cas := make([]uint64, 1), make([]uint64, 1)
			for range rounds {
				for swapped := false; !swapped && r.ctx.Err() == nil; {
					expect := cas[0]
					b.Reset()
					b.CAS(k, 520, expect, expect+1, cas)
					if err := rdma.Do(r.ctx, c, &b); err != nil {
						r.Error(err)
						return
					}
					swapped = cas[0] == expect
				}
				b.Reset()
				b.FAA(k, 512, 1, faa)
				if err := rdma.Do(r.ctx, c, &b); err != nil {
					r.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	s := m.MustSpan(512, 16)
	if s.Load(0) != clients*rounds || s.Load(1) != clients*rounds {
		r.Errorf("after %d FAAs and as many won CASes the words are %d and %d", clients*rounds, s.Load(0), s.Load(1))
	}
}

// caseGrants checks that each grant allows its verbs, READ always, and no others.
func caseGrants(r *rig) {
	for _, a := range []rdma.Access{rdma.AccessRead, rdma.AccessWrite, rdma.AccessAtomic} {
		if a != rdma.AccessRead && r.f.Grants&a == 0 {
			continue
		}
		e := r.listen(rdma.ListenOptions{})
		m := r.region(1)
		k := r.register(e, m, a)
		r.check(e.Serve(Echo))
		c := r.dial(e)
		var b rdma.Batch
		b.Read(k, 64, make([]uint64, 1))
		b.Write(k, 128, []uint64{1})
		b.CAS(k, 192, Pattern(192), 1, make([]uint64, 1))
		b.FAA(k, 256, 1, make([]uint64, 1))
		_ = rdma.Do(r.ctx, c, &b)
		for i, allowed := range []bool{true, a&rdma.AccessWrite != 0, a&rdma.AccessAtomic != 0, a&rdma.AccessAtomic != 0} {
			wr := &b.WRs[i]
			if allowed && wr.Status != rdma.StatusOK || !allowed && !refused(wr.Status) {
				r.Errorf("grant %b: %v has status %d", a, wr.Op, wr.Status)
			}
			changed := m.MustSpan(wr.Addr, 8).Load(0) != Pattern(wr.Addr)
			if changed != (allowed && wr.Op != rdma.OpRead) {
				r.Errorf("grant %b: %v changed memory: %v", a, wr.Op, changed)
			}
		}
	}
}

// refused reports one of the two statuses for what a grant does not allow.
func refused(s rdma.Status) bool { return s == rdma.StatusAccess || s == rdma.StatusUnsupported }

func caseUngranted(r *rig) {
	for _, a := range []rdma.Access{rdma.AccessWrite, rdma.AccessAtomic} {
		if r.f.Grants&a != 0 {
			continue
		}
		e := r.listen(rdma.ListenOptions{})
		m := r.region(1)
		k, err := e.Register(m, rdma.AccessRead|a)
		if err != nil {
			continue // refusing to register such a grant is as good
		}
		r.check(e.Serve(Echo))
		c := r.dial(e)
		var b rdma.Batch
		if a == rdma.AccessWrite {
			b.Write(k, 128, []uint64{1})
		} else {
			b.CAS(k, 128, Pattern(128), 1, make([]uint64, 1))
			b.FAA(k, 128, 1, make([]uint64, 1))
		}
		_ = rdma.Do(r.ctx, c, &b)
		for i := range b.WRs {
			if !refused(b.WRs[i].Status) {
				r.Errorf("%v, which the provider does not have, completes with status %d", b.WRs[i].Op, b.WRs[i].Status)
			}
		}
		if m.MustSpan(128, 8).Load(0) != Pattern(128) {
			r.Error("a verb the provider does not have changed memory")
		}
	}
}
