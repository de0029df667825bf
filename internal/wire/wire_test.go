package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/placement"
	"drtmx/internal/testseed"
	"drtmx/internal/twophase"
)

func drawProofs(t *rapid.T, name string) (ps []index.Proof) {
	for range rapid.IntRange(0, 5).Draw(t, name) {
		ps = append(ps, index.Proof{Addr: rapid.Uint64().Draw(t, "addr"), Word: rapid.Uint64().Draw(t, "word")})
	}
	return ps
}

// drawKey draws a key of either kind.
func drawKey(t *rapid.T) (k index.Key, strings bool) {
	if rapid.Bool().Draw(t, "strings") {
		return index.Str(string(rapid.SliceOfN(rapid.Byte(), 0, index.MaxKeyBytes).Draw(t, "key"))), true
	}
	return index.Num(rapid.Uint64().Draw(t, "key")), false
}

func TestKeysRoundTripAndAreBounded(t *testing.T) {
	testseed.Check(t, func(t *rapid.T) {
		k, strings := drawKey(t)
		d := NewDecoder(AppendKey(nil, k, strings))
		if got, kind := d.Key(); got != k || kind != strings || d.End() != nil {
			t.Fatalf("%v came back as %v: %v", k, got, d.End())
		}
	})
	d := NewDecoder(AppendKey(nil, index.Str(string(make([]byte, index.MaxKeyBytes+1))), true))
	if _, _ = d.Key(); d.Err() == nil {
		t.Error("a key beyond the bound is taken")
	}
	reads := AppendReads(nil, []Read{{Scan: true, Strings: true, Lo: index.Str("a"), Hi: index.Str("b"), Limit: 3}})
	reads[14] = 0xff // the second key's length becomes the mark of a number
	reads[15] = 0xff
	d = NewDecoder(reads[1:])
	if _, err := DecodeReads(&d, nil); !errors.Is(err, ErrMessage) {
		t.Errorf("a range from a string to a number: %v", err)
	}
}

func TestCommitRoundTrip(t *testing.T) {
	var got Commit // reused, as servers do
	testseed.Check(t, func(t *rapid.T) {
		c := Commit{ID: ID{rapid.Uint64().Draw(t, "client"), rapid.Uint64().Draw(t, "seq")}}
		for i := range rapid.IntRange(0, 4).Draw(t, "parts") {
			p := c.NextPart(placement.Partition(i))
			p.Rows, p.Gaps = drawProofs(t, "rows"), drawProofs(t, "gaps")
			for range rapid.IntRange(0, 4).Draw(t, "writes") {
				w := Write{
					Index: rapid.Uint16().Draw(t, "ix"), Op: WriteOp(rapid.IntRange(1, 4).Draw(t, "op")),
					Hint: rapid.Uint64().Draw(t, "hint"), Row: rapid.SliceOf(rapid.Byte()).Draw(t, "row"),
				}
				w.Key, w.Strings = drawKey(t)
				p.Writes = append(p.Writes, w)
			}
		}
		b := AppendCommit(nil, OpCommit, &c, nil)
		d := NewDecoder(b[1:])
		if err := got.Decode(&d); err != nil || d.End() != nil {
			t.Fatal(err, d.End())
		}
		if again := AppendCommit(nil, OpCommit, &got, nil); !bytes.Equal(again, b) {
			t.Fatalf("decoded and encoded again:\n%x\n%x", again, b)
		}
	})
}

func TestReadAnswersRoundTrip(t *testing.T) {
	testseed.Check(t, func(t *rapid.T) {
		g := index.GetResult{
			Status: index.Found, Header: block.Header(rapid.Uint64().Draw(t, "h")), Hint: 7, Rests: block.CSN(rapid.Uint64().Draw(t, "c")),
			Row: rapid.SliceOf(rapid.Uint64()).Draw(t, "row"), Proofs: drawProofs(t, "proofs"),
		}
		strings := rapid.Bool().Draw(t, "strings")
		sc := index.ScanResult{Status: index.NotFound, More: rapid.Bool().Draw(t, "more"), Quick: drawProofs(t, "q"), Gaps: drawProofs(t, "g")}
		for i := range rapid.IntRange(0, 5).Draw(t, "entries") {
			key := index.Num(uint64(i))
			if strings {
				key = index.Str(string(make([]byte, i)))
			}
			sc.Entries = append(sc.Entries, index.Entry{Key: key, Addr: 8, Header: 9, Row: rapid.SliceOf(rapid.Uint64()).Draw(t, "r")})
		}
		d := NewDecoder(AppendScan(AppendGet(nil, &g), &sc, strings))
		var g2 index.GetResult
		var s2 index.ScanResult
		d.Get(&g2, nil)
		d.Scan(&s2, nil)
		if err := d.End(); err != nil {
			t.Fatal(err)
		}
		if g2.Header != g.Header || g2.Rests != g.Rests || s2.Rests != sc.Rests || !equalWords(g2.Row, g.Row) || len(g2.Proofs) != len(g.Proofs) || s2.More != sc.More || len(s2.Entries) != len(sc.Entries) {
			t.Fatalf("%+v\n%+v", g2, s2)
		}
		for i := range sc.Entries {
			if !equalWords(sc.Entries[i].Row, s2.Entries[i].Row) || sc.Entries[i].Key != s2.Entries[i].Key {
				t.Fatalf("entry %d: %v, want %v", i, s2.Entries[i], sc.Entries[i])
			}
		}
	})
}

func equalWords(a, b []uint64) bool {
	return len(a) == len(b) && (len(a) == 0 || reflect.DeepEqual(a, b))
}

func TestCopyStepsRoundTrip(t *testing.T) {
	testseed.Check(t, func(t *rapid.T) {
		m := CopyStep{
			Step: rapid.Uint8Range(CopyBegin, CopyFrames).Draw(t, "step"), Server: placement.Server(rapid.IntRange(0, MaxParts).Draw(t, "server")),
			Host: rapid.IntRange(-1, MaxParts).Draw(t, "host"), To: rapid.IntRange(-1, MaxParts).Draw(t, "to"),
			Epoch: rapid.Uint32().Draw(t, "epoch"), Since: rapid.Uint32().Draw(t, "since"), Session: rapid.Uint64().Draw(t, "session"),
			At: rapid.Uint64().Draw(t, "at"), Log: rapid.Uint64().Draw(t, "log"), Bytes: rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"),
		}
		b := m.Append(nil)
		var got CopyStep
		d := NewDecoder(b[1:])
		if err := got.Decode(&d); err != nil {
			t.Fatal(err)
		}
		if len(m.Bytes) == 0 {
			got.Bytes = m.Bytes
		}
		if Op(b[0]) != OpCopy || !reflect.DeepEqual(got, m) {
			t.Fatalf("%+v, want %+v", got, m)
		}
		for cut := range len(b) - len(m.Bytes) - 1 {
			if d := NewDecoder(b[1 : 1+cut]); got.Decode(&d) == nil {
				t.Fatalf("decoded of %d bytes", cut)
			}
		}
	})
}

func TestHelloIsChecked(t *testing.T) {
	good := Hello{Version: Version, Server: 0, Servers: []string{"a"}, Placement: placement.Spread(1, 1)}
	for name, change := range map[string]func(*Hello){
		"version":   func(h *Hello) { h.Version++ },
		"servers":   func(h *Hello) { h.Servers = nil },
		"server":    func(h *Hello) { h.Server = 1 },
		"primary":   func(h *Hello) { h.Placement = placement.Spread(4, 4) },
		"no parts":  func(h *Hello) { h.Placement = placement.Map{} },
		"partition": func(h *Hello) { h.Hosted = []Hosted{{Partition: -1}} },
	} {
		h := good
		change(&h)
		b, _ := json.Marshal(h)
		if _, err := DecodeHello(b); !errors.Is(err, ErrMessage) {
			t.Errorf("%s: %v", name, err)
		}
	}
	b, _ := json.Marshal(good)
	if _, err := DecodeHello(b); err != nil {
		t.Error(err)
	}
	b, _ = json.Marshal(Hello{Version: Version, Keeper: true})
	if _, err := DecodeHello(b); !errors.Is(err, ErrKeeper) {
		t.Errorf("a keeper: %v", err)
	}
}

// TestLeaseRoundTrip: an answer says what was put into it, and nothing that is
// cut, too long or out of range is one.
func TestLeaseRoundTrip(t *testing.T) {
	for _, l := range []Lease{{1, 2, 3, 4}, {math.MaxUint64, math.MaxUint32, NoLease, NoLease}, {7, 1, 0, 0}} {
		b := AppendLease(nil, l)
		if got, err := DecodeLease(b[1:]); err != nil || got != l || Code(b[0]) != OK {
			t.Errorf("%+v came back as %+v, %v", l, got, err)
		}
		for n := range b[1:] {
			if got, err := DecodeLease(b[1 : 1+n]); !errors.Is(err, ErrMessage) {
				t.Errorf("%d bytes: %+v, %v", n, got, err)
			}
		}
		if _, err := DecodeLease(append(b[1:], 0)); !errors.Is(err, ErrMessage) {
			t.Errorf("a byte too many: %v", err)
		}
		b[len(b)-1] |= 0x80
		if got, err := DecodeLease(b[1:]); !errors.Is(err, ErrMessage) {
			t.Errorf("a negative time: %+v, %v", got, err)
		}
	}
	if b := AppendLease(nil, Lease{Left: -5}); !bytes.Equal(b, AppendLease(nil, Lease{})) {
		t.Errorf("a lease that has ended is %x", b)
	}
}

// TestCallTimes: the times of a call arrive as they were sent, in microseconds and up to
// what fits.
func TestCallTimes(t *testing.T) {
	const most = math.MaxUint32 * time.Microsecond
	for _, c := range []struct{ wait, left, wantWait, wantLeft time.Duration }{
		{0, 0, 0, 0},
		{time.Second, 20 * time.Millisecond, time.Second, 20 * time.Millisecond},
		{time.Hour, 3*time.Second + 999, time.Hour, 3 * time.Second},
		{-time.Second, 1000 * time.Hour, 0, most},
	} {
		b := AppendCall(nil, ID{1, 2}, Sent{3, 4, 5}, c.wait, c.left, 7, 3, "p", []byte("args"))
		d := NewDecoder(b[1:])
		var got Call
		if err := got.Decode(&d); err != nil {
			t.Fatal(err)
		}
		want := Call{ID: ID{1, 2}, Sent: Sent{3, 4, 5}, Wait: c.wantWait, Left: c.wantLeft, Seen: 7, Partition: 3, Procedure: []byte("p"), Args: []byte("args")}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

// TestPartiesAreThereOnce: messages of one transaction to many partitions name its
// parties once, also if other messages are between them.
func TestPartiesAreThereOnce(t *testing.T) {
	const parties = 512
	var all []twophase.Party
	for p := range placement.Partition(parties) {
		all = append(all, twophase.Party{Partition: p, Incarnation: 7})
	}
	id := twophase.ID{Coordinator: all[0], Seq: 5}
	var ms []twophase.Message
	for _, p := range all {
		ms = append(ms, twophase.Message{Kind: twophase.Prepare, From: all[0], To: p, ID: id, Parties: all, Agent: all[1]})
	}
	ms[7].Parties = all[:9]                                                             // of another transaction
	ms[20].Agent = all[2]                                                               // likewise
	ms[30] = twophase.Message{Kind: twophase.Noted, From: all[0], To: all[1], Named: 3} // without parties
	b := AppendMessages([]byte{byte(OpPrepare)}, ms)
	if most := 6*parties*partyBytes + parties*(messageBytesMin+partyBytes); len(b) > most {
		t.Errorf("%d messages have %d bytes, want at most %d", len(ms), len(b), most)
	}
	d := NewDecoder(b[1:])
	if got := d.Messages(nil); d.End() != nil || !reflect.DeepEqual(got, ms) {
		t.Error("the messages are others when they are decoded")
	}
	first := AppendMessages([]byte{byte(OpPrepare)}, ms[:1])
	first[1+4+1+3*partyBytes+8] |= flagSame
	if d := NewDecoder(first[1:]); len(d.Messages(nil)) > 0 || d.End() == nil {
		t.Error("the first message has the parties of the one before")
	}
}

func FuzzDecoders(f *testing.F) {
	c := Commit{ID: ID{1, 2}, Age: 17}
	p := c.NextPart(3)
	p.Rows = []index.Proof{{Addr: 64, Word: 1}}
	p.Writes = []Write{{Index: 1, Op: Insert, Key: index.Num(5), Row: []byte("12345678")}}
	f.Add(AppendCommit(nil, OpCommit, &c, nil))
	f.Add(AppendReads(nil, []Read{
		{Lo: index.Num(1)},
		{Strings: true, Lo: index.Str("k")},
		{Scan: true, Lo: index.Num(1), Hi: index.Num(9), Limit: 3},
		{Lo: index.Num(1), At: 7},
		{Scan: true, Strings: true, Lo: index.Str("a"), Hi: index.Str("b"), Limit: 3, At: 1 << 35},
	}))
	f.Add(AppendCall(nil, ID{1, 2}, Sent{3, 4, 5}, 0, 0, 0, 3, "p", []byte("args")))
	p1, p2 := twophase.Party{Partition: 1, Incarnation: 7}, twophase.Party{Partition: 2, Incarnation: 9}
	id := twophase.ID{Coordinator: p1, Seq: 5}
	f.Add(AppendMessages([]byte{0}, []twophase.Message{
		{Kind: twophase.Prepare, From: p1, To: p2, ID: id, Parties: []twophase.Party{p1, p2}, Agent: p2, Watermark: 3, Heard: 4},
		{Kind: twophase.Prepare, From: p1, To: p1, ID: id, Parties: []twophase.Party{p1, p2}, Agent: p2, Watermark: 3, Heard: 4},
		{Kind: twophase.Ask, From: p2, To: p1, ID: id, Gone: []twophase.Party{{Partition: 3, Incarnation: 1}}},
		{Kind: twophase.Answer, From: p1, To: p2, ID: id, Known: twophase.InDoubt, Closed: 1},
		{Kind: twophase.Settled, From: p1, To: p2, Watermark: 3, Named: 9, Open: []uint64{3, 7}},
		{Kind: twophase.Noted, From: p2, To: p1, Named: 9},
		{Kind: twophase.Vote, From: p2, To: p1, ID: id, Ballot: twophase.Yes, Tick: 1 << 35},
		{Kind: twophase.HandOver, From: p1, To: p2, ID: id, Parties: []twophase.Party{p1, p2}, Agent: p2, Tick: 17},
	}))
	f.Add(AppendScan(AppendGet([]byte{0}, &index.GetResult{Status: index.Found}), &index.ScanResult{Status: index.Found}, false))
	f.Add((&WriterRequest{Step: WriterExtend, Partition: 3, Index: 2, Catalog: 1, Name: 77, Owner: 5}).Append(nil))
	f.Add((&Opened{ID: 9, Owner: 5, Key: 7, Fence: 1, First: 4096, SlotsPerLeaf: 8, Writers: 64, Checksums: true}).Append([]byte{0}))
	f.Add(AppendSpares([]byte{0}, []Spare{{4096, 1}, {8192, 2}}))
	f.Add(AppendShipped(AppendShipped(AppendShipping(nil, &Shipping{From: 1, To: 2, Incarnation: 3, First: 4}),
		&ShippedEntry{Index: 5, Gone: true, Strings: true, Key: index.Str("k")}), &ShippedEntry{Index: 6, Last: true, Key: index.Num(9), Place: 4096}))
	f.Add(AppendAnswerToShipping([]byte{0}, &Shipped{UpTo: 7, Ticks: []TakenAt{{UpTo: 5, Tick: 3}, {UpTo: 7, Tick: 4}}, Refused: []Refused{{Number: 6, Code: OutOfMemory, Text: "full"}}}))
	f.Add((&PlacesRequest{Partition: 3, Index: 2, Keys: []uint64{7, 1 << 40}}).Append(nil))
	f.Add(AppendPlaces([]byte{0}, []uint64{4096, 0}))
	f.Add([]byte("\x00{\"server\":1,\"indexes\":[{\"Rows\":3}],\"next\":2}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		var c Commit
		d := NewDecoder(b[1:])
		if c.Decode(&d) == nil && d.End() == nil {
			if again := AppendCommit(nil, Op(b[0]), &c, nil); !bytes.Equal(again, b) {
				t.Fatalf("commit %x encodes again as %x", b, again)
			}
		}
		d = NewDecoder(b[1:])
		if reads, err := DecodeReads(&d, nil); err == nil {
			d = NewDecoder(AppendReads(nil, reads)[1:])
			if again, err := DecodeReads(&d, nil); err != nil || !slices.Equal(again, reads) {
				t.Fatalf("reads %+v decode again as %+v, %v", reads, again, err)
			}
		}
		var call Call
		d = NewDecoder(b[1:])
		_ = call.Decode(&d)
		if l, err := DecodeLease(b[1:]); err == nil && !bytes.Equal(AppendLease(nil, l)[1:], b[1:]) {
			t.Fatalf("lease %x decodes as %+v", b, l)
		}
		if f, err := DecodeFailure(b); err == nil && !bytes.Equal(AppendFailure(nil, &f), b) {
			t.Fatalf("failure %x decodes as %+v", b, f)
		}
		d = NewDecoder(b[1:])
		if ms := d.Messages(nil); d.End() == nil {
			again := AppendMessages(b[:1:1], ms)
			d = NewDecoder(again[1:])
			if twice := d.Messages(nil); d.End() != nil || !reflect.DeepEqual(ms, twice) {
				t.Fatalf("messages %+v decode again as %+v", ms, twice)
			}
		}
		var ship Shipping
		d = NewDecoder(b[1:])
		if ship.Decode(&d) == nil {
			again := AppendShipping(nil, &ship)
			for i := range ship.Entries {
				again = AppendShipped(again, &ship.Entries[i])
			}
			if !bytes.Equal(again[1:], b[1:]) {
				t.Fatalf("shipments %x encode again as %x", b, again)
			}
		}
		var got Shipped
		d = NewDecoder(b[1:])
		if got.Decode(&d) == nil {
			if again := AppendAnswerToShipping(b[:1:1], &got); !bytes.Equal(again, b) {
				t.Fatalf("answer to shipments %x encodes again as %x", b, again)
			}
		}
		var places PlacesRequest
		d = NewDecoder(b[1:])
		if places.Decode(&d) == nil && !bytes.Equal(places.Append(nil)[1:], b[1:]) {
			t.Fatalf("question about places %x decodes as %+v", b, places)
		}
		for n := range 3 {
			d = NewDecoder(b[1:])
			if got, err := d.Places(nil, n); err == nil && !bytes.Equal(AppendPlaces(b[:1:1], got), b) {
				t.Fatalf("places %x decode as %v", b, got)
			}
		}
		var q WriterRequest
		d = NewDecoder(b[1:])
		if q.Decode(&d) == nil && !bytes.Equal(q.Append(nil)[1:], b[1:]) {
			t.Fatalf("request of a writer %x decodes as %+v", b, q)
		}
		var o Opened
		d = NewDecoder(b[1:])
		if o.Decode(&d) == nil && !bytes.Equal(o.Append(b[:1:1]), b) {
			t.Fatalf("writer %x decodes as %+v", b, o)
		}
		d = NewDecoder(b[1:])
		if spares := d.Spares(); d.End() == nil && !bytes.Equal(AppendSpares(b[:1:1], spares), b) {
			t.Fatalf("leaves for splits %x decode as %+v", b, spares)
		}
		st := ServerStats{Next: 1}
		if DecodeStats(b, &st) == nil && st.Next != 0 && (st.Next <= 1 || st.Next > MaxParts) {
			t.Fatalf("statistics %q go on at partition %d", b, st.Next)
		}
		var g index.GetResult
		var s index.ScanResult
		d = NewDecoder(b[1:])
		d.Get(&g, nil)
		d.Scan(&s, nil)
		_, _ = DecodeHello(b)
	})
}
