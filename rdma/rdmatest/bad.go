package rdmatest

import (
	"errors"

	"drtmx/internal/mem"
	"drtmx/rdma"
)

var badCases = []Case{
	{"BadAddressesCompleteWithErrorAlone", caseBadAddresses},
	{"BadLengths", caseBadLengths},
	{"BadRKeys", caseBadRKeys},
	{"BadVerb", caseBadVerb},
	{"BadWritesTouchNothing", caseBadWrites},
	{"BadWholeBatch", caseBadWholeBatch},
	{"BadRequestsHarmNobodyElse", caseBadHarmless},
}

// mustFail posts each bad request between two good READs and expects an error
// for it, content for them, and a count in Faults. want is what the errors
// wrap.
func (r *rig) mustFail(c rdma.Conn, k rdma.RKey, want error, bad ...rdma.WR) {
	r.Helper()
	for _, wr := range bad {
		var b rdma.Batch
		b.Read(k, 64, make([]uint64, 8))
		b.WRs = append(b.WRs, wr)
		b.Read(k, 1024, make([]uint64, 64))
		for i := range wr.Buf {
			wr.Buf[i] = canary
		}
		before := c.Counters().Faults
		err := rdma.Do(r.ctx, c, &b)
		if !errors.Is(err, want) {
			r.Errorf("%v of %d words at %#x, rkey %d: error %v, want %v", wr.Op, len(wr.Buf), wr.Addr, wr.RKey, err, want)
		}
		if s := b.WRs[1].Status; !errors.Is(s.Err(), want) {
			r.Errorf("%v of %d words at %#x, rkey %d: status %d", wr.Op, len(wr.Buf), wr.Addr, wr.RKey, s)
		}
		for i, v := range wr.Buf {
			if v != canary {
				r.Fatalf("%v of %d words at %#x: refused, yet word %d of its buffer was written", wr.Op, len(wr.Buf), wr.Addr, i)
			}
		}
		for _, i := range []int{0, 2} {
			if s := b.WRs[i].Status; s != rdma.StatusOK {
				r.Fatalf("a good READ beside a bad %v at %#x has status %d", wr.Op, wr.Addr, s)
			}
			r.checkPattern(b.WRs[i].Buf, b.WRs[i].Addr)
		}
		if n := c.Counters().Faults - before; n != 1 {
			r.Errorf("%v of %d words at %#x: counted as %d faults", wr.Op, len(wr.Buf), wr.Addr, n)
		}
	}
}

// badAddresses are (address, words) outside a region of two segments.
func badAddresses(m *mem.Region) [][2]uint64 {
	size := m.Size()
	return [][2]uint64{
		{size, 1},
		{size - 8, 2},
		{size + 8, 1},
		{size + segmentBytes, 1},
		{m.MaxBytes() - 8, 1},
		{m.MaxBytes(), 1},
		{segmentBytes - 8, 2},
		{8, segmentBytes / mem.WordBytes}, // across two segments
		{4, 1},
		{1, 1},
		{size - 4, 1},
		{size - 1, 1}, // unaligned
		{1 << 47, 1},
		{1 << 48, 1},
		{1 << 63, 1},
		{1<<63 - 8, 2},
		{1 << 32, 1}, // far out
		{^uint64(7), 1},
		{^uint64(7), 2},
		{^uint64(15), 64},
		{^uint64(0), 1}, // overflowing
	}
}

func caseBadAddresses(r *rig) {
	e, m, k := r.server()
	c := r.dial(e)
	for _, a := range badAddresses(m) {
		r.mustFail(c, k, rdma.ErrAccess, rdma.WR{Op: rdma.OpRead, RKey: k, Addr: a[0], Buf: make([]uint64, a[1])})
	}
}

func caseBadLengths(r *rig) {
	e := r.listen(rdma.ListenOptions{})
	k := r.register(e, r.regionOf(1, 4*rdma.MaxReadBytes), rdma.AccessRead)
	r.check(e.Serve(Echo))
	c := r.dial(e)
	r.mustFail(c, k, rdma.ErrAccess,
		rdma.WR{Op: rdma.OpRead, RKey: k, Addr: 64},
		rdma.WR{Op: rdma.OpRead, RKey: k, Addr: 64, Buf: []uint64{}},
		rdma.WR{Op: rdma.OpRead, RKey: k, Addr: 0, Buf: make([]uint64, rdma.MaxReadBytes/mem.WordBytes+1)},
		rdma.WR{Op: rdma.OpRead, RKey: k, Addr: 8, Buf: make([]uint64, 2*rdma.MaxReadBytes/mem.WordBytes)})
}

func caseBadRKeys(r *rig) {
	e, _, k := r.server()
	c := r.dial(e)
	for _, bad := range []rdma.RKey{k + 1, k + 1000, k ^ 1<<31, ^k} {
		r.mustFail(c, k, rdma.ErrAccess, rdma.WR{Op: rdma.OpRead, RKey: bad, Addr: 64, Buf: make([]uint64, 8)})
	}
}

func caseBadVerb(r *rig) {
	e, _, k := r.server()
	c := r.dial(e)
	for _, op := range []rdma.Op{0, rdma.OpFAA + 1, 255} {
		var b rdma.Batch
		b.WRs = append(b.WRs, rdma.WR{Op: op, RKey: k, Addr: 64, Buf: []uint64{canary}})
		b.Read(k, 64, make([]uint64, 8))
		if err := rdma.Do(r.ctx, c, &b); err == nil || !refused(b.WRs[0].Status) {
			r.Errorf("verb %d: status %d, error %v", op, b.WRs[0].Status, err)
		}
		if b.WRs[0].Buf[0] != canary {
			r.Errorf("verb %d wrote to its buffer", op)
		}
		r.checkPattern(b.WRs[1].Buf, 64)
	}
}

func caseBadWrites(r *rig) {
	e, m, k := r.server() // granted for reading only
	c := r.dial(e)
	var b rdma.Batch
	b.Write(k, 64, []uint64{1, 2, 3})
	b.CAS(k, 128, Pattern(128), 1, []uint64{0})
	b.FAA(k, 192, 1, []uint64{0})
	b.Read(k, 0, make([]uint64, 64))
	err := rdma.Do(r.ctx, c, &b)
	if !errors.Is(err, rdma.ErrAccess) && !errors.Is(err, rdma.ErrUnsupported) {
		r.Errorf("writes to a region granted for reading: %v", err)
	}
	for i := range 3 {
		if !refused(b.WRs[i].Status) {
			r.Errorf("%v on a region granted for reading: status %d", b.WRs[i].Op, b.WRs[i].Status)
		}
	}
	r.checkPattern(b.WRs[3].Buf, 0)
	if n := c.Counters().Faults; n != 3 {
		r.Errorf("3 refused writes are counted as %d faults", n)
	}
	if r.f.Grants&rdma.AccessWrite == 0 {
		return
	}
	// Out of bounds of a region that may be written.
	w := r.region(2)
	kw := r.register(e, w, rdma.AccessRead|r.f.Grants)
	for _, a := range badAddresses(w) {
		b.Reset()
		b.Write(kw, a[0], make([]uint64, a[1]))
		if r.f.Grants&rdma.AccessAtomic != 0 && a[1] == 1 {
			b.CAS(kw, a[0], 0, 1, []uint64{0})
			b.FAA(kw, a[0], 1, []uint64{0})
		}
		_ = rdma.Do(r.ctx, c, &b)
		for i := range b.WRs {
			if b.WRs[i].Status != rdma.StatusAccess {
				r.Errorf("%v of %d words at %#x: status %d", b.WRs[i].Op, a[1], a[0], b.WRs[i].Status)
			}
		}
	}
	for _, m := range []*mem.Region{m, w} {
		for off := uint64(0); off < m.Size(); off += mem.WordBytes {
			if m.MustSpan(off, 8).Load(0) != Pattern(off) {
				r.Fatalf("a refused write changed the word at %#x", off)
			}
		}
	}
}

func caseBadWholeBatch(r *rig) {
	e, m, k := r.server()
	c := r.dial(e)
	var b rdma.Batch
	for range 100 {
		b.Read(k, m.Size(), make([]uint64, 8))
	}
	for range 3 {
		if err := rdma.Do(r.ctx, c, &b); !errors.Is(err, rdma.ErrAccess) {
			r.Fatalf("batch of bad READs: %v", err)
		}
		for i := range b.WRs {
			if b.WRs[i].Status != rdma.StatusAccess {
				r.Fatalf("request %d has status %d", i, b.WRs[i].Status)
			}
		}
	}
	if n := c.Counters(); n.Faults != 300 || n.Reads != 300 || n.ReadBytes != 0 || n.Rounds != 3 {
		r.Errorf("counters after 3 batches of 100 bad READs: %+v", n)
	}
}

func caseBadHarmless(r *rig) {
	e, m, k := r.server()
	bad, good := r.dial(e), r.dial(e)
	for range 20 {
		var b rdma.Batch
		b.Read(k+1, m.MaxBytes(), make([]uint64, 8))
		b.Write(k, m.Size(), make([]uint64, 8))
		_ = rdma.Do(r.ctx, bad, &b)
		for _, c := range []rdma.Conn{bad, good} {
			resp, err := rdma.Call(r.ctx, c, []byte("still there?"), nil)
			if err != nil || string(resp) != "still there?" {
				r.Fatalf("call after bad requests: %q, %v", resp, err)
			}
		}
		if v := r.load(good, k, 64); v != Pattern(64) {
			r.Fatalf("another client reads %#x", v)
		}
	}
}
