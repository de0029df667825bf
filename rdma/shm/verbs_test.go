package shm

import (
	"sync/atomic"
	"testing"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/rdmatest"
)

// verbsBed is a server's agent with two regions, of which the client may write the second.
type verbsBed struct {
	l        *serverLink
	read     *mem.Region
	written  *mem.Region
	kRead, k rdma.RKey
}

func newVerbsBed(t testing.TB) *verbsBed {
	l := fuzzLink(t, 1)
	l.who.Role = rdma.RoleWriter
	b := &verbsBed{l: l}
	region := func(a rdma.Access) (*mem.Region, rdma.RKey) {
		m, err := mem.New(mem.Options{SegmentBytes: pageBytes, MaxBytes: 2 * pageBytes})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Grow(); err != nil {
			t.Fatal(err)
		}
		k, err := l.e.Endpoint.Register(m, a)
		if err != nil {
			t.Fatal(err)
		}
		return m, k
	}
	b.read, b.kRead = region(rdma.AccessRead)
	b.written, b.k = region(rdma.AccessWrite | rdma.AccessAtomic)
	return b
}

// verbsOf returns verbs as they stand in their area, good ones and bad.
func (b *verbsBed) verbsOf() [][]byte {
	words := func(vs ...verb) []byte {
		var all []uint64
		for _, v := range vs {
			at := len(all)
			all = append(all, uint64(v.op)<<verbOpShift|uint64(v.words)<<verbWordsShift|uint64(v.rkey), v.addr, v.arg, v.swap)
			for i := range v.bodyWords() {
				all = append(all, uint64(at+i))
			}
		}
		return mem.Bytes(all)
	}
	return [][]byte{
		words(verb{op: rdma.OpWrite, words: 3, rkey: b.k, addr: 64}, verb{op: rdma.OpCAS, words: 1, rkey: b.k, addr: 128, arg: 0, swap: 9}),
		words(verb{op: rdma.OpFAA, words: 1, rkey: b.k, addr: 8, arg: 1}, verb{op: rdma.OpRead, words: 1, rkey: b.k}),
		words(verb{op: rdma.OpWrite, words: 2, rkey: b.kRead, addr: 64}, verb{op: rdma.OpCAS, words: 1, rkey: b.kRead}),
		words(verb{op: rdma.OpWrite, words: 512, rkey: b.k}, verb{op: rdma.OpWrite, words: 1, rkey: b.k, addr: 2 * pageBytes}),
		words(verb{op: rdma.OpWrite, rkey: b.k}, verb{op: rdma.OpCAS, rkey: b.k}, verb{op: 77, words: 1, rkey: b.k}),
		words(verb{op: rdma.OpWrite, words: verbWordsMask, rkey: b.k})[:verbWords*mem.WordBytes],
		words(verb{op: rdma.OpFAA, words: 1, rkey: b.k, addr: ^uint64(0) &^ 7}, verb{op: rdma.OpFAA, words: 1, rkey: ^rdma.RKey(0)}),
	}
}

// run lets the agent perform what a hostile client has put into the area of verbs.
func (b *verbsBed) run(t *testing.T, in []byte) {
	l := b.l
	l.conns = make([]atomic.Pointer[serverConn], slotsFor(len(l.bells)))
	slot, ok := l.open(1)
	if !ok {
		t.Fatal("no room")
	}
	c := l.conns[slot].Load()
	words := min((len(in)+mem.WordBytes-1)/mem.WordBytes, c.agent.verbs.Words())
	body := make([]uint64, words)
	copy(mem.Bytes(body), in)
	c.agent.verbs.CopyIn(body)
	rdmatest.FillPattern(b.read, 0, pageBytes)
	c.request.publishVerbs(1, words)
	did := c.performVerbs()
	if c.ended == did {
		t.Errorf("performed: %v, ended: %v", did, c.ended)
	}
	if again := c.performVerbs(); again {
		t.Error("the same verbs are performed again")
	}
	buf := make([]uint64, pageBytes/mem.WordBytes)
	b.read.MustSpan(0, pageBytes).CopyOut(buf)
	if i, ok := rdmatest.HasPattern(buf, 0); !ok {
		t.Errorf("word %d of a region that may only be read has changed", i)
	}
	if !did {
		return
	}
	if seq, results := c.response.verbs(); seq != 1 || results > c.agent.results.Words() {
		t.Errorf("results %d of %d words", seq, results)
	}
}

// FuzzVerbs performs verbs from an untrusted peer.
func FuzzVerbs(f *testing.F) {
	b := newVerbsBed(f)
	for _, in := range b.verbsOf() {
		f.Add(in)
	}
	f.Fuzz(func(t *testing.T, in []byte) { b.run(t, in) })
}

func TestMutatedVerbs(t *testing.T) {
	b := newVerbsBed(t)
	rdmatest.Mutated(t, 20000, b.verbsOf(), func(in []byte) { b.run(t, in) })
}

// Each verb has one result in its order, and what is refused does not stop the others.
func TestVerbsAndResults(t *testing.T) {
	b := newVerbsBed(t)
	for i, want := range [][]rdma.Status{
		{rdma.StatusOK, rdma.StatusOK},
		{rdma.StatusOK, rdma.StatusUnsupported},
		{rdma.StatusAccess, rdma.StatusAccess},
		{rdma.StatusOK, rdma.StatusAccess},
		{rdma.StatusAccess, rdma.StatusAccess, rdma.StatusUnsupported},
		nil,
		{rdma.StatusAccess, rdma.StatusAccess},
	} {
		b.run(t, b.verbsOf()[i])
		c := b.l.conns[0].Load()
		if c.ended != (want == nil) {
			t.Errorf("verbs %d: ended is %v", i, c.ended)
		}
		if want == nil {
			continue
		}
		if seq, words := c.response.verbs(); seq != 1 || words != len(want)*resultWords {
			t.Errorf("verbs %d: results %d of %d words", i, seq, words)
		}
		for j, s := range want {
			if got := rdma.Status(c.agent.results.Load(j * resultWords)); got != s {
				t.Errorf("verb %d of %d has status %d, want %d", j, i, got, s)
			}
		}
	}
}
