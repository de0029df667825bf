package rolex

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
)

// spoil changes a leaf as a hostile writer may: writers are granted WRITE on all leaves.
func (b *bed) spoil(addr uint64, change func(m image)) {
	m := image{b.s.l, make([]uint64, b.s.l.LeafWords)}
	p := b.s.span(addr)
	p.CopyOut(m.w)
	change(m)
	m.seal(addr, m.header()) // with a checksum that fits
	p.Slice(1, b.s.l.LeafWords-1).CopyIn(m.w[1:])
	p.Store(block.HeaderWord, m.w[block.HeaderWord])
}

// pack sets the meta word of a leaf.
func (m image) pack(change func(meta *leaf.Meta)) {
	meta := m.meta()
	change(&meta)
	m.w[leaf.MetaWord] = m.l.Pack(meta)
}

// fill uses all slots from one on, for keys that the leaf covers.
func (m image) fill(from int) {
	for i := from; i < m.l.Slots; i++ {
		m.w[m.l.HeadsAt+i], m.w[m.l.KeysAt+i] = usedHead, m.low()+uint64(i)
	}
}

// hostileLeaves are what a hostile writer may make of a leaf that is not the last one.
var hostileLeaves = []struct {
	name  string
	spoil func(addr uint64, m image)
}{
	{"used slots, and a count of 0", func(_ uint64, m image) {
		m.fill(0)
		m.pack(func(meta *leaf.Meta) { meta.Live, meta.Count = 0, 0 })
	}},
	{"used slots above the count", func(_ uint64, m image) {
		m.remove(70)
		n := m.meta().Count
		m.fill(n)
		m.pack(func(meta *leaf.Meta) { meta.Count = n })
	}},
	{"more rows than slots", func(_ uint64, m image) { m.pack(func(meta *leaf.Meta) { meta.Live = 255 }) }},
	{"a count above the slots", func(_ uint64, m image) { m.pack(func(meta *leaf.Meta) { meta.Count = 255 }) }},
	{"a wrong order", func(_ uint64, m image) { m.w[m.l.OrderAt] = math.MaxUint64 }},
	{"fences that fall", func(_ uint64, m image) { m.w[leaf.HighWord] = m.low() }},
	{"no right leaf", func(_ uint64, m image) { m.w[leaf.RightWord] = 0 }},
	{"another index", func(_ uint64, m image) { m.w[leaf.MetaWord] ^= 1 << 40 }},
	{"a head that is none", func(_ uint64, m image) { m.w[m.l.HeadsAt] = 7 }},
	{"a death", func(_ uint64, m image) { m.w[block.HeaderWord] = uint64(dead(m.header().Version())) }},
}

// A leaf that a hostile writer has spoiled is an error for who meets it: the data server's
// transactions, its reads, and other writers. Nobody panics, and nobody holds it.
func TestSpoiledLeavesAreErrors(t *testing.T) {
	for _, x := range hostileLeaves {
		b := newBed(t, small, inproc.Options{})
		for k := range uint64(12) {
			b.check(b.s.Load(index.Num(10*k), row(k), 0))
		}
		w := b.mustWriter(nil)
		addr, words := b.lent(w, 50)
		proof := index.Proof{Addr: addr, Word: words[0]}
		b.spoil(addr, func(m image) { x.spoil(addr, m) })
		if res := b.s.Get(index.Num(50), nil); res.Status != index.Failed || !errors.Is(res.Err, index.ErrCorrupt) {
			t.Errorf("%s: a lookup: %v, %v", x.name, res.Status, res.Err)
		}
		if b.s.Scan(index.Num(0), index.Num(200), 0, &b.scanned, nil); b.scanned.Status != index.Failed {
			t.Errorf("%s: a scan: %v", x.name, b.scanned.Status)
		}
		for _, key := range []uint64{50, 55} {
			if _, err := b.s.LockWrite(1, index.Num(key), addr); !errors.Is(err, index.ErrCorrupt) {
				t.Errorf("%s: a lock of key %d: %v", x.name, key, err)
			}
			err := w.commit(b.ctx, []Write{{Key: key, Row: row(1), Hint: addr}}, nil)
			if !errors.Is(err, index.ErrCorrupt) && !(errors.Is(err, ErrChanged) && b.s.header(addr).Dead()) {
				t.Errorf("%s: a writer's commit of key %d: %v", x.name, key, err)
			}
		}
		before := b.s.header(addr)
		if b.s.Share(proof, 1) {
			t.Errorf("%s: the leaf is shared", x.name)
		}
		if h := b.s.header(addr); h != before || len(b.s.holds) > 0 {
			t.Errorf("%s: the leaf is %v after it could not be shared, and %d are held", x.name, h, len(b.s.holds))
		}
		for at, n := (index.Place{}), 0; b.s.Visit(&at, 1, func(*index.Entry) {}); n++ {
			if n > 100 {
				t.Fatalf("%s: a visit does not end", x.name)
			}
		}
		if _, err := b.s.LockWrite(1, index.Num(0), 0); err != nil {
			t.Errorf("%s: a lock in another leaf: %v", x.name, err)
		}
	}
}

// fewRounds is a connection that ends after some rounds.
type fewRounds struct {
	rdma.Conn
	left int
}

var errManyRounds = errors.New("too many rounds")

func (c *fewRounds) Post(b *rdma.Batch) error {
	if c.left--; c.left < 0 {
		return errManyRounds
	}
	return c.Conn.Post(b)
}

// Links of a hostile writer that lead back, or nowhere, keep nobody for ever.
func TestLinksThatLeadBackEnd(t *testing.T) {
	for _, x := range []struct {
		name  string
		right func(first, addr uint64) uint64
	}{
		{"to the leaf itself", func(_, addr uint64) uint64 { return addr }},
		{"to the first leaf", func(first, _ uint64) uint64 { return first }},
		{"outside the leaves", func(_, addr uint64) uint64 { return addr << 20 }},
	} {
		b := newBed(t, small, inproc.Options{})
		w := b.mustWriter(nil)
		for k := range uint64(100) { // the server does not know the leaves
			b.check(b.supply(w, 2))
			b.check(w.commit(b.ctx, []Write{{Key: k, Row: row(k)}}, nil))
		}
		addr, _ := b.lent(w, 50)
		b.spoil(addr, func(m image) { m.w[leaf.RightWord] = x.right(b.s.first, addr) })
		if res := b.s.Get(index.Num(99), nil); res.Status != index.Failed {
			t.Errorf("%s: a lookup behind it: %v", x.name, res.Status)
		}
		if _, err := b.s.LockWrite(1, index.Num(99), addr); !errors.Is(err, index.ErrCorrupt) {
			t.Errorf("%s: a lock behind it: %v", x.name, err)
		}
		lasting := b.mustWriter(func(c rdma.Conn) rdma.Conn { return &fewRounds{c, 200} })
		if err := lasting.commit(b.ctx, []Write{{Key: 99, Row: row(1)}}, nil); err == nil || errors.Is(err, errManyRounds) {
			t.Errorf("%s: a writer's commit behind it: %v", x.name, err)
		}
		b.train()
	}
}

// A hostile writer makes the header of a leaf that the data server holds that of a free or a dead one.
// The memory does not serve again while the data server holds it.
func TestHeldLeavesServeNothingElse(t *testing.T) {
	b := newBed(t, small, inproc.Options{})
	for k := range uint64(12) {
		b.check(b.s.Load(index.Num(10*k), row(k), 0))
	}
	w := b.mustWriter(nil)
	for _, key := range []uint64{40, 50, 60, 70} {
		b.check(w.commit(b.ctx, []Write{{Key: key}}, nil))
	}
	addr, _ := b.lent(w, 50)
	empty, err := b.s.LockWrite(1, index.Num(50), 0)
	b.check(err)
	b.spoil(addr, func(m image) { m.w[block.HeaderWord] = uint64(free(m.header().Version())) })
	b.train() // takes it out
	spare := w.spares[len(w.spares)-1]
	before := b.s.header(spare.Addr)
	b.spoil(spare.Addr, func(m image) {
		m.blank(50, 51, false, addr)
		m.w[block.HeaderWord] = uint64(free(before.Version() + 1))
	})
	linked, err := b.s.LockWrite(2, index.Num(50), spare.Addr) // as a hostile client's hint
	b.check(err)
	b.s.span(spare.Addr).Store(block.HeaderWord, uint64(before))
	_, err = b.settle(w.o.Owner) // takes its spare leaves back
	b.check(err)
	var held []*index.Held
	for k := range uint64(300) { // needs all spare leaves
		if h, err := b.s.LockWrite(3, index.Num(1000+k), 0); err == nil {
			held = append(held, h)
		}
	}
	if len(held) < 300 {
		t.Errorf("%d keys were locked", len(held))
	}
	b.s.Publish(empty, row(1), 0)
	b.s.Publish(linked, row(1), 0)
	for _, h := range held {
		b.s.Publish(h, row(1), 0)
	}
}

// use calls all that meets leaves, and expects no more than that it ends. between is called while the
// server holds some of them.
func (b *bed) use(w *Writer, keys []uint64, between func()) {
	b.Helper()
	leaves := (b.s.end - b.s.l.leavesAt) / b.s.l.LeafBytes()
	type share struct {
		p index.Proof
		o index.Owner
	}
	var shares []share
	var held []*index.Held
	for i, k := range keys {
		o := index.Owner(1 + i%3)
		b.s.Get(index.Num(k), nil)
		b.s.Scan(index.Num(k), index.Num(k+100), i%4, &b.scanned, nil)
		addr := b.s.l.leavesAt + k%leaves*b.s.l.LeafBytes()
		p := index.Proof{Addr: addr, Word: uint64(b.s.header(addr))}
		if b.s.Share(p, o) {
			shares = append(shares, share{p, o})
		}
		b.s.Holds(p, o)
		if h, err := b.s.LockWrite(o, index.Num(k), addr*uint64(i%2)); err == nil && !slices.Contains(held, h) {
			held = append(held, h)
		}
		_, _ = b.s.Report(addr, b.s.header(addr))
		before, x := w.Rounds(), Write{Key: k, Row: row(k), Hint: addr * uint64(i%2)}
		if i%4 == 3 {
			x.Leaf = make([]uint64, b.s.l.LeafWords) // as the transaction has READ it
			b.s.span(addr).CopyOut(x.Leaf)
		}
		err := w.commit(b.ctx, []Write{x, {Key: k + 7}}, nil)
		if errors.Is(err, ErrNoLeaf) {
			_ = b.supply(w, len(w.spares)+1) // unless it was settled
		}
		if n := w.Rounds() - before; errors.Is(err, context.DeadlineExceeded) || n > 16*leaves+100 {
			b.Fatalf("a commit of %d rounds: %v", n, err)
		}
	}
	between()
	b.clock.Advance(WriterLease)
	for range 8 {
		b.clock.Advance(3 * time.Millisecond)
		b.s.Maintain(b.clock.Now(), nil)
	}
	for i, h := range held {
		switch i % 3 {
		case 0:
			b.s.Publish(h, row(1), 0)
		case 1:
			b.s.PublishDelete(h, 0)
		default:
			b.s.Release(h)
		}
	}
	for _, x := range shares {
		b.s.Unshare(x.p.Addr, x.o)
	}
	for at, n := (index.Place{}), uint64(0); n < 4*leaves && b.s.Visit(&at, 1, func(*index.Entry) {}); n++ {
	}
	b.s.Stats()
	_, _ = b.s.Rows()
	_ = b.s.Load(index.Num(keys[0]), row(1), 0)
}

// hostileBed is a data server with some leaves, and an honest writer.
func hostileBed(t testing.TB, fabric inproc.Options) (*bed, *Writer) {
	b := newBed(t, small, fabric)
	for k := range uint64(40) {
		b.check(b.s.Load(index.Num(10*k), row(k), 0))
	}
	w := b.mustWriter(nil)
	for k := range uint64(8) {
		b.check(w.commit(b.ctx, []Write{{Key: 50*k + 1, Row: row(k)}}, nil))
	}
	b.train()
	return b, w
}

// Hostile writers change leaves in any way, also while the data server holds them. Nothing panics, and
// everything ends.
func TestHostileLeaves(t *testing.T) {
	root := rng.New(testseed.Of(t))
	for run := range uint64(150) {
		t.Run(fmt.Sprint(run), func(t *testing.T) {
			r := root.SplitN(run)
			fabric := inproc.Options{}
			if run%3 == 0 { // with checksums
				fabric = inproc.Options{Faults: inproc.Faults{Scramble: 1}, Seed: r.Uint64()}
			}
			b, w := hostileBed(t, fabric)
			spoil := func() {
				for range 1 + r.Intn(4) {
					leaves := (b.s.end - b.s.l.leavesAt) / b.s.l.LeafBytes()
					addr := b.s.l.leavesAt + r.Uint64n(min(leaves, 24))*b.s.l.LeafBytes()
					b.spoil(addr, func(m image) { spoilAtRandom(r, m, addr) })
				}
			}
			for range 4 {
				spoil()
				keys := make([]uint64, 12)
				for i := range keys {
					keys[i] = r.Uint64n(420)
				}
				b.use(w, keys, spoil)
			}
		})
	}
}

// spoilAtRandom changes a leaf in one of the ways that its readers must be ready for.
func spoilAtRandom(r *rng.Stream, m image, addr uint64) {
	l := m.l
	some := func() uint64 { return r.Uint64() >> r.Intn(64) }
	at := func() uint64 { return l.leavesAt + r.Uint64n(24)*l.LeafBytes() }
	switch r.Intn(10) {
	case 0:
		m.w[r.Intn(len(m.w)-1)+1] = some()
	case 1:
		m.pack(func(meta *leaf.Meta) { meta.Live, meta.Count = r.Intn(256), r.Intn(l.Slots+2) })
	case 2:
		m.fill(r.Intn(l.Slots))
	case 3:
		m.fill(0)
		m.pack(func(meta *leaf.Meta) { meta.Live, meta.Count = 0, 0 })
	case 4:
		m.w[leaf.LowWord], m.w[leaf.HighWord] = r.Uint64n(420), r.Uint64n(420)
		for i := range l.Slots {
			m.w[l.HeadsAt+i] = l.FreeHead
		}
		m.arrange()
	case 5:
		m.w[leaf.RightWord] = []uint64{addr, at(), 0, some()}[r.Intn(4)]
	case 6:
		m.pack(func(meta *leaf.Meta) { meta.Last = !meta.Last })
	case 7:
		m.blank(r.Uint64n(420), 420, false, at())
	case 8:
		v := m.header().Version()
		m.w[block.HeaderWord] = uint64([]Header{free(v), free(v + 1), dead(v), free(v).hold(Owner(2 * r.Intn(2))), Header(some())}[r.Intn(5)])
	default:
		for i := range m.w[1:] {
			m.w[1+i] = some()
		}
		m.w[leaf.RightWord] = at()
		m.pack(func(meta *leaf.Meta) { meta.Live, meta.Count = r.Intn(l.Slots+1), r.Intn(l.Slots+1) })
	}
}

// FuzzLeaf uses an index of which a hostile writer has written two leaves.
func FuzzLeaf(f *testing.F) {
	l, err := newLayout(1, small)
	if err != nil {
		f.Fatal(err)
	}
	for _, x := range hostileLeaves {
		m := image{l, make([]uint64, l.LeafWords)}
		m.blank(40, 80, false, l.leavesAt+3*l.LeafBytes())
		m.put(50, row(1))
		m.put(60, row(2))
		x.spoil(l.leavesAt, m)
		f.Add(mem.Bytes(m.w), uint8(1), uint8(2), false)
		f.Add(append(slices.Clone(mem.Bytes(m.w)), 0), uint8(0), uint8(5), true)
	}
	f.Fuzz(func(t *testing.T, in []byte, one, two uint8, sums bool) {
		fabric := inproc.Options{}
		if sums {
			fabric.Faults.Scramble = 1
		}
		b, w := hostileBed(t, fabric)
		words := make([]uint64, b.s.l.LeafWords)
		copy(mem.Bytes(words), in)
		spoil := func() {
			for _, n := range []uint8{one, two} {
				b.spoil(b.s.l.leavesAt+uint64(n%24)*b.s.l.LeafBytes(), func(m image) {
					copy(m.w[1:], words[1:])
					meta := leaf.Unpack(words[leaf.MetaWord])
					m.w[leaf.MetaWord] = m.l.Pack(meta) // of this index, else nothing looks at the rest
					if len(in)%2 == 1 {
						m.w[block.HeaderWord] = words[block.HeaderWord]
					}
				})
			}
		}
		spoil()
		b.use(w, []uint64{45, 50, 51, 52, 53, 60, 75, 90, 0, 395}, spoil)
	})
}

// TestSpoiledFencesEndAPlan: while the trainer plans a generation, piece by piece, a hostile writer changes the
// fence and the link of a leaf, so that fences do not rise. The plan is given up, and the data server goes on.
func TestSpoiledFencesEndAPlan(t *testing.T) {
	b := newBed(t, small, inproc.Options{})
	w := b.mustWriter(nil)
	const leaves = 3000 // more than the trainer looks at in one step
	var addrs []uint64
	addr := w.o.First
	for k := range uint64(4 * leaves) {
		b.check(b.supply(w, 2))
		b.check(w.commit(b.ctx, []Write{{Key: k, Row: row(k), Hint: addr}}, nil))
		if k%4 == 0 {
			var err error
			addr, _, err = w.read(b.ctx, k, addr)
			b.check(err)
			addrs = append(addrs, addr)
		}
	}
	step := func() {
		b.clock.Advance(3 * time.Millisecond)
		b.s.Maintain(b.clock.Now(), nil)
	}
	step()
	step()
	b.spoil(b.s.nearest(4*2048).addr, func(m image) { m.w[leaf.RightWord], m.w[leaf.HighWord] = addrs[2500], 4*2500 })
	for range 20 {
		step()
	}
	if res := b.s.Get(index.Num(0), nil); res.Status != index.Found {
		t.Errorf("the first row is %v", res.Status)
	}
}
