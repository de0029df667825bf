package server

import (
	"bytes"
	"slices"
	"testing"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

// sparseIndex has the number keys from 0 on, and so many leaves without rows before each of them.
type sparseIndex struct {
	index.OrderedServer
	rows, leaves uint64
	scans        int
}

func (x *sparseIndex) Scan(lo, hi index.Key, limit int, res *index.ScanResult, buf []uint64) []uint64 {
	x.scans++
	*res = index.ScanResult{Status: index.Found, Entries: res.Entries[:0], Quick: res.Quick[:0], Gaps: res.Gaps[:0]}
	for k := lo.Num; k <= hi.Num && k < x.rows; k++ {
		for range x.leaves {
			res.Quick, res.Gaps = append(res.Quick, index.Proof{Addr: 64}), append(res.Gaps, index.Proof{Addr: 80})
		}
		if limit > 0 && len(res.Entries) == limit {
			res.More = true
			break
		}
		res.Entries = append(res.Entries, index.Entry{Key: index.Num(k), Row: []uint64{k}, Header: block.Present(1), Addr: 64})
	}
	return buf[:0]
}

// lastAnswer keeps the answer to a request.
type lastAnswer struct{ body []byte }

func (a *lastAnswer) Reply(b []byte) error {
	if len(b) > rdma.MaxMessageBytes {
		return rdma.ErrTooLarge
	}
	a.body = bytes.Clone(b)
	return nil
}

// TestScansFitMessages: a scan whose proofs do not fit a message is answered in parts, however many
// leaves without rows are between two rows. A client that goes on gets all rows.
func TestScansFitMessages(t *testing.T) {
	const all = 1 << 15
	scan := func(lo, hi uint64) wire.Read {
		return wire.Read{Scan: true, Lo: index.Num(lo), Hi: index.Num(hi), Limit: all}
	}
	for _, c := range []struct {
		name         string
		rows, leaves uint64
		reads        []wire.Read
		messages     int // at least
		scansEach    int // for one message, at most, beside one for each answer
	}{
		{"a leaf for each row", 1000, 1, []wire.Read{scan(0, all)}, 1, 1},
		{"leaves without rows", 3000, 20, []wire.Read{scan(0, all)}, 2, 4},
		{"no row", 0, 20, []wire.Read{scan(0, all)}, 1, 1},
		{"a row or two in a message", 20, 10000, []wire.Read{scan(0, all)}, 10, 5},
		{"several scans", 3000, 20, []wire.Read{scan(0, 999), scan(1000, 1999), scan(2000, all)}, 2, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := &sparseIndex{rows: c.rows, leaves: c.leaves}
			s, w, p := &Server{}, &work{}, &partition{}
			p.has.Store(&holdings{indexes: []*hosted{{Server: x, def: &tables.Index{Name: "t", Ordered: true, RowBytes: 8}}}})
			s.parts.of = []*partition{p}
			var got []uint64
			messages, reads := 0, c.reads
			for ; len(reads) > 0; messages++ {
				if messages > int(c.rows)+1 {
					t.Fatalf("%d messages for %d rows", messages, c.rows)
				}
				x.scans = 0
				var a lastAnswer
				d := wire.NewDecoder(wire.AppendReads(nil, reads)[1:])
				s.handleRead(&rdma.Request{From: &rdma.Identity{Role: rdma.RoleServer}, Replier: &a}, w, &d)
				if len(a.body) == 0 || wire.Code(a.body[0]) != wire.OK {
					t.Fatalf("message %d is answered %.80q", messages, a.body)
				}
				d = wire.NewDecoder(a.body[1:])
				answers, rest := 0, []wire.Read(nil)
				for ; d.Left() > 0; answers++ {
					var res index.ScanResult
					d.Scan(&res, nil)
					if d.Err() != nil {
						t.Fatal(d.Err())
					}
					for _, e := range res.Entries {
						got = append(got, e.Key.Num)
					}
					if res.More {
						rest = append(rest, scan(got[len(got)-1]+1, reads[answers].Hi.Num))
					}
				}
				if x.scans > c.scansEach+answers {
					t.Errorf("message %d: %d scans for %d answers", messages, x.scans, answers)
				}
				reads = append(rest, reads[answers:]...)
			}
			if messages < c.messages {
				t.Errorf("%d messages, want %d or more", messages, c.messages)
			}
			slices.Sort(got)
			for i, k := range got {
				if k != uint64(i) {
					t.Fatalf("row %d has key %d", i, k)
				}
			}
			if uint64(len(got)) != c.rows {
				t.Errorf("%d rows, want %d", len(got), c.rows)
			}
		})
	}
}

// TestScanOfOneRowMayNotFit: a range in which a message has no room for the proofs before the second
// row cannot be read this way. The answer says so.
func TestScanOfOneRowMayNotFit(t *testing.T) {
	x := &sparseIndex{rows: 5, leaves: 1 << 15}
	s, p := &Server{}, &partition{}
	p.has.Store(&holdings{indexes: []*hosted{{Server: x, def: &tables.Index{Name: "t", Ordered: true, RowBytes: 8}}}})
	s.parts.of = []*partition{p}
	var a lastAnswer
	d := wire.NewDecoder(wire.AppendReads(nil, []wire.Read{{Scan: true, Hi: index.Num(9), Limit: 9}})[1:])
	s.handleRead(&rdma.Request{From: &rdma.Identity{Role: rdma.RoleServer}, Replier: &a}, &work{}, &d)
	if len(a.body) == 0 || wire.Code(a.body[0]) != wire.TooLarge || x.scans > 4 {
		t.Errorf("answered %.80q after %d scans", a.body, x.scans)
	}
}
