package redo

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"testing"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/internal/testseed"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
)

func randomBytes(r *rand.Rand, most int) []byte {
	b := make([]byte, r.IntN(most))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func randomParty(r *rand.Rand) twophase.Party {
	return twophase.Party{Partition: placement.Partition(r.IntN(wire.MaxParts)), Incarnation: r.Uint64()}
}

func randomParts(r *rand.Rand, csn bool) (parts []Part) {
	for range r.IntN(4) {
		p := Part{Partition: placement.Partition(r.IntN(wire.MaxParts)), Reads: !csn && r.IntN(2) == 0}
		if csn {
			p.CSN = block.NewCSN(clock.Tick(1+r.IntN(1<<30)), uint64(r.IntN(1<<20)))
		}
		for range r.IntN(5) {
			w := wire.Write{Op: wire.Put, Index: uint16(r.IntN(1 << 16)), Key: index.Num(r.Uint64()), Row: randomBytes(r, 300)}
			if r.IntN(2) == 0 {
				w.Strings, w.Key = true, index.Str(string(randomBytes(r, index.MaxKeyBytes)))
			}
			switch r.IntN(3) {
			case 0:
				w.Op, w.Row = wire.Delete, nil
			case 1:
				w.Op = wire.Insert
			}
			p.Writes = append(p.Writes, w)
		}
		parts = append(parts, p)
	}
	return parts
}

// random returns a record of any kind, with all its fields set.
func random(r *rand.Rand) *Record {
	rec := &Record{Kind: Kind(1 + r.IntN(int(Closed)))}
	step := func() {
		rec.Partition = placement.Partition(r.IntN(wire.MaxParts))
		rec.Step = twophase.Record{
			Kind: twophase.Prepared + twophase.RecordKind(r.IntN(3)), Ballot: twophase.Ballot(r.IntN(3)), Commit: r.IntN(2) == 0,
			ID: twophase.ID{Coordinator: randomParty(r), Seq: r.Uint64()}, Tick: clock.Tick(r.Uint64N(uint64(block.MaxTick))), Mark: r.Uint64(),
		}
		for range r.IntN(5) {
			rec.Step.Parties = append(rec.Step.Parties, randomParty(r))
			rec.Step.Marks = append(rec.Step.Marks, r.Uint64())
		}
		if r.IntN(2) == 0 {
			rec.Step.Agent, rec.Step.Party, rec.Step.Marks = randomParty(r), randomParty(r), nil
		}
	}
	session := func() {
		if r.IntN(2) == 0 {
			rec.Session, rec.Result = wire.ID{Client: r.Uint64(), Seq: 1 + r.Uint64()>>1}, randomBytes(r, 100)
		}
	}
	tick := clock.Tick(r.Uint64N(uint64(block.MaxTick)))
	csn := block.NewCSN(tick, uint64(r.IntN(1<<20)))
	switch rec.Kind {
	case Commit:
		session()
		rec.Parts = randomParts(r, true)
		if r.IntN(2) == 0 {
			step()
		}
	case Prepared, Decided, Departed:
		session()
		rec.Parts = randomParts(r, r.IntN(2) == 0)
		step()
	case Load:
		rec.Partition, rec.Index, rec.Version, rec.CSN = placement.Partition(r.IntN(wire.MaxParts)), uint16(r.Uint32()), r.Uint32(), csn
		rec.Rows = randomBytes(r, 400)
	case Catalog:
		rec.Catalog = randomBytes(r, 400)
	case Started:
		rec.Epoch, rec.Tick = r.Uint32(), tick
	case Closed:
		rec.Tick = tick
	}
	return rec
}

// same compares records; nil and empty slices are equal.
func same(a, b *Record) bool {
	return bytes.Equal(a.Append(nil), b.Append(nil)) && a.Kind == b.Kind && a.Session == b.Session &&
		a.Partition == b.Partition && a.Tick == b.Tick && a.CSN == b.CSN && reflect.DeepEqual(a.Step, b.Step) && len(a.Parts) == len(b.Parts)
}

func TestRecords(t *testing.T) {
	r := rand.New(rand.NewPCG(testseed.Of(t), 0))
	var got Record
	for range 5000 {
		want := random(r)
		b := want.Append(nil)
		if err := got.Decode(b); err != nil {
			t.Fatalf("%+v: %v", want, err)
		}
		if !same(want, &got) {
			t.Fatalf("wrote %+v\nread %+v", want, &got)
		}
		for i := range want.Parts {
			w, g := want.Parts[i], got.Parts[i]
			if w.Partition != g.Partition || w.CSN != g.CSN || w.Reads != g.Reads || len(w.Writes) != len(g.Writes) {
				t.Fatalf("wrote part %+v\nread %+v", w, g)
			}
			for j := range w.Writes {
				x, y := w.Writes[j], g.Writes[j]
				if x.Op != y.Op || x.Index != y.Index || x.Key != y.Key || x.Strings != y.Strings || !bytes.Equal(x.Row, y.Row) {
					t.Fatalf("wrote %+v\nread %+v", x, y)
				}
			}
		}
		switch want.Kind { // the others end with bytes of any length
		case Load, Catalog:
		default:
			if err := got.Decode(append(b, 0)); err == nil {
				t.Fatalf("%v with a byte too many is accepted", want.Kind)
			}
			if err := got.Decode(b[:len(b)-1]); err == nil {
				t.Fatalf("%v without its last byte is accepted", want.Kind)
			}
		}
	}
}

// TestRecordBytes bounds what a record adds to the bytes of the rows.
func TestRecordBytes(t *testing.T) {
	row := make([]byte, 200)
	rec := Record{
		Kind: Commit, Session: wire.ID{Client: 1 << 60, Seq: 1 << 20},
		Parts: []Part{{Partition: 3, CSN: block.NewCSN(1<<33, 7), Writes: []wire.Write{{Op: wire.Put, Key: index.Num(1 << 60), Row: row}}}},
	}
	if n := len(rec.Append(nil)); n > len(row)+48 {
		t.Errorf("a record of one row of %d bytes has %d", len(row), n)
	}
}

// hostile returns records that say that they have many elements, the first of which is
// malformed.
func hostile() (all [][]byte) {
	const n = 1 << 16
	rest := bytes.Repeat([]byte{0xff}, 3*n+100)
	parts := append(appendUint([]byte{byte(Commit), 0}, n), rest...)
	writes := append(appendUint([]byte{byte(Commit), 0, 1, 0, 0}, n), rest...)
	step := Record{Kind: Prepared, Step: twophase.Record{Kind: twophase.Prepared, ID: twophase.ID{Coordinator: twophase.Party{Incarnation: 1}}}}
	b := step.Append(nil)
	parties := append(appendUint(b[:len(b)-2], n), rest...) // instead of no parties and no marks
	return [][]byte{parts, writes, parties}
}

// TestDecodeEndsAtAFault: a record costs no memory for elements after the first that is
// malformed.
func TestDecodeEndsAtAFault(t *testing.T) {
	for i, b := range hostile() {
		var r Record
		if err := r.Decode(b); err == nil {
			t.Errorf("record %d is accepted", i)
		}
		n := len(r.Parts) + len(r.Step.Parties)
		for _, p := range r.Parts {
			n += len(p.Writes)
		}
		if n == 0 || n > 2 {
			t.Errorf("record %d: %d elements were decoded, want the malformed one, and what has it", i, n)
		}
	}
}

func FuzzDecode(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		f.Add(random(r).Append(nil))
	}
	for _, b := range hostile() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var rec, again Record
		if rec.Decode(b) != nil {
			return
		}
		if err := again.Decode(rec.Append(nil)); err != nil || !same(&rec, &again) {
			t.Errorf("%+v is %+v again, %v", rec, again, err)
		}
	})
}

// FuzzEach: what Each accepts are records that AppendSized writes as they are.
func FuzzEach(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for n := range 20 {
		var b []byte
		for range n {
			b = random(r).AppendSized(b)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var again []byte
		n := 0
		if Each(b, func(rec *Record) error { again, n = rec.AppendSized(again), n+1; return nil }) != nil {
			return
		}
		m := 0
		if err := Each(again, func(*Record) error { m++; return nil }); err != nil || m != n {
			t.Errorf("%d records are %d again, %v", n, m, err)
		}
	})
}

// TestEach: records come back in their order, and what ends within one is refused.
func TestEach(t *testing.T) {
	r := rand.New(rand.NewPCG(testseed.Of(t), 1))
	var want []*Record
	var b []byte
	ends := map[int]bool{0: true}
	for range 20 {
		want = append(want, random(r))
		b = want[len(want)-1].AppendSized(b)
		ends[len(b)] = true
	}
	n := 0
	err := Each(b, func(got *Record) error {
		if !same(want[n], got) {
			t.Errorf("record %d is %+v, want %+v", n, got, want[n])
		}
		n++
		return nil
	})
	if err != nil || n != len(want) {
		t.Errorf("%d records of %d: %v", n, len(want), err)
	}
	for cut := range b {
		if err := Each(b[:cut], func(*Record) error { return nil }); (err == nil) != ends[cut] {
			t.Fatalf("%d of %d bytes: %v", cut, len(b), err)
		}
	}
}
