package server

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/datadir"
	"drtmx/internal/placement"
	"drtmx/internal/redo"
	"drtmx/internal/wal"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// appendRecords appends records to the log of a closed server.
func appendRecords(t *testing.T, fs vfs.FS, dir string, partitions int, records []redo.Record) (starts []wal.LSN) {
	t.Helper()
	d, err := datadir.Open(fs, dir, datadir.Identity{Servers: 1, Partitions: partitions})
	if err != nil {
		t.Fatal(err)
	}
	l, err := wal.Open(wal.Options{FS: fs, Dir: fs.PathJoin(dir, LogDir), Identity: d.Bytes(), SegmentBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Replay(0, func(*wal.Record) error { return nil }); err != nil {
		t.Fatal(err)
	}
	l.Start()
	for i := range records {
		starts = append(starts, l.End())
		if _, err := l.AppendWait(records[i].Append(nil)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(l.Close(), d.Close()); err != nil {
		t.Fatal(err)
	}
	return starts
}

// TestReplayNamesTheFirstFault: partitions apply the log at once, and the error
// still names the first record that cannot be applied; the writes of each
// partition are applied in order, over many batches.
func TestReplayNamesTheFirstFault(t *testing.T) {
	const partitions, rounds = 4, 4000
	for _, bad := range []int{-1, 3 * rounds / 4} {
		fs := vfs.NewMem()
		cl, acct, _ := openBank(t, fs, 1, partitions)
		if err := cl.Close(); err != nil {
			t.Fatal(err)
		}
		size := acct.Primary().RowBytes
		var records []redo.Record
		for i := range rounds {
			parts := make([]redo.Part, partitions)
			for p := range parts {
				ix := uint16(acct.Primary().ID)
				if i >= bad && bad >= 0 && p != (i+1)%partitions {
					ix = 99
				}
				csn := block.NewCSN(1, uint64(i+1))
				if i%2 == 1 { // a record of an older commit, later in the log
					csn = block.NewCSN(1, uint64(i-1))
				}
				parts[p] = redo.Part{Partition: placement.Partition(p), CSN: csn, Writes: []wire.Write{{Op: wire.Put, Index: ix, Key: index.Num(uint64(p)), Row: make([]byte, size)}}}
			}
			records = append(records, redo.Record{Kind: redo.Commit, Parts: parts})
		}
		starts := appendRecords(t, fs, ServerDir("data", 0), partitions, records)
		cat := bank(t)
		cl, err := Embedded(t.Context(), EmbeddedConfig{Catalog: cat, Partitions: partitions, Durability: Disk, Dir: "data", FS: fs, SegmentBytes: 1 << 20})
		if bad >= 0 {
			if want := fmt.Sprintf("at %d:", starts[bad]); !errors.Is(err, ErrRecovery) || !strings.Contains(err.Error(), want) {
				t.Fatalf("a log with bad records: %v, want %v %q", err, ErrRecovery, want)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for p := range partitions {
			res := cl.Servers[0].parts.of[p].index(acct.Primary().ID).Get(index.Num(uint64(p)), nil)
			if want := block.NewCSN(1, rounds-1); res.Rests != want {
				t.Errorf("partition %d: %+v, want a row of the newest commit, %v", p, res, want)
			}
		}
		if err := cl.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// expecting is an index that counts for how many rows room is made.
type expecting struct {
	index.Server
	rows []uint64
}

func (x *expecting) Expect(rows uint64) { x.rows = append(x.rows, rows) }

// TestLoadedRowsAreExpected: an index that the log loads is made as large as all
// its rows need, once, before the first of them, unless they do not fit.
func TestLoadedRowsAreExpected(t *testing.T) {
	cl, acct, _ := openBank(t, vfs.NewMem(), 1, 1)
	defer func() {
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	}()
	p := cl.Servers[0].parts.of[0]
	def := acct.Primary()
	id, each := uint16(def.ID), uint64(8+def.RowBytes)
	record := make([]byte, 10*each)
	for _, c := range []struct {
		name  string
		bytes uint64
		first []byte
		want  []uint64
	}{
		{"many", 1000 * each, record, []uint64{1000}},
		{"one record", 10 * each, record, []uint64{10}},
		{"more than fits", p.region.MaxBytes(), record, nil},
		{"no rows", 1000 * each, nil, nil},
		{"malformed", 1000 * each, record[:len(record)-1], nil},
	} {
		ix := &expecting{}
		l := lane{p: p, loads: map[uint16]uint64{id: c.bytes}}
		for range 2 {
			l.expect(&hosted{Server: ix, def: def}, c.first)
		}
		if !slices.Equal(ix.rows, c.want) {
			t.Errorf("%s: room is made for %d rows, want %d", c.name, ix.rows, c.want)
		}
	}
}

// TestLogOfLoadsMakesRoom: recovery from a log without a checkpoint makes hash
// indexes as large as loading has made them.
func TestLogOfLoadsMakesRoom(t *testing.T) {
	const rows = 5000
	fs := vfs.NewMem()
	cl, acct, _ := openBank(t, fs, 1, 2)
	l, err := cl.DB.NewLoader(t.Context(), acct)
	if err != nil {
		t.Fatal(err)
	}
	for id := range uint64(rows) {
		if err := l.Add(tables.Num(id), acct.NewRow()); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(l.Close(), cl.DB.Seal(t.Context())); err != nil {
		t.Fatal(err)
	}
	sizes := func(cl *Cluster) (all []uint64) {
		for _, p := range cl.Servers[0].parts.here {
			all = append(all, p.index(acct.Primary().ID).Stats().IndexBytes)
		}
		return all
	}
	was := sizes(cl)
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
	cl, acct, _ = openBank(t, fs, 1, 2)
	if got := cl.Servers[0].Recovered().Rows; got < rows {
		t.Errorf("%d rows are recovered, want at least %d", got, rows)
	}
	for i, got := range sizes(cl) {
		if got > was[i] || 2*got < was[i] { // overflow buckets come and go as tables grow
			t.Errorf("partition %d: an index of %d bytes after recovery, %d before", i, got, was[i])
		}
	}
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
}
