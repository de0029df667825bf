package server

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/index"
	"drtmx/internal/testseed"
	"drtmx/internal/wire"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// TestEntriesOfTwinsHaveOneWord: a data server that is sent an entry of another size refuses it,
// whether the table's own rows have one size or, with string keys, many.
func TestEntriesOfTwinsHaveOneWord(t *testing.T) {
	columns := []tables.Column{{Name: "n", Type: tables.Int64}}
	parts := tables.Partitioning{Kind: tables.ByHash}
	cat, err := tables.NewCatalog(
		tables.Def{Name: "numbers", Primary: tables.Hash, Twin: tables.TwinLocal, Columns: columns, Partition: parts},
		tables.Def{Name: "strings", Primary: tables.Hash, Twin: tables.TwinLocal, Key: tables.StringKey, Columns: columns, Partition: parts},
	)
	if err != nil {
		t.Fatal(err)
	}
	cl, err := Embedded(t.Context(), EmbeddedConfig{
		Catalog: cat, Servers: 1, Partitions: 1, Network: inproc.New(inproc.Options{}), MemoryBytes: 64 << 20,
		Client: txn.Config{Retry: txn.Retry{Patience: testseed.Patience()}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	p := cl.Servers[0].parts.of[0]
	for _, tab := range cat.Tables {
		twin := tab.Twin()
		key := index.Num(7)
		if twin.Strings {
			key = index.Str("seven")
		}
		for _, size := range []int{0, 8, 16, 24} {
			t.Run(fmt.Sprintf("%s of %d bytes", tab.Name(), size), func(t *testing.T) {
				w := wire.Write{Index: uint16(twin.ID), Op: wire.Insert, Key: key, Strings: twin.Strings, Row: make([]byte, size)}
				prep, v := p.prepare(&wire.Part{Writes: []wire.Write{w}})
				if fine := size == twin.RowBytes; v.ok() != fine {
					t.Fatalf("prepared with %v, %q", v.code, v.text)
				}
				if v.ok() {
					prep.decide(false, 0)
				}
				if !twin.Strings {
					return // the message has rows of one size, and no sizes
				}
				b := wire.AppendBytes(wire.AppendKey(nil, key, true), w.Row)
				if v := p.load(twin.ID, cat.Version(), b); v.ok() != (size == twin.RowBytes) {
					t.Fatalf("loaded with %v, %q", v.code, v.text)
				}
			})
		}
	}
}

// TestRecoveredEntriesHaveNoPlaces: what a client says of a row's place is dropped when it commits, and also
// when its commit is read from the log.
func TestRecoveredEntriesHaveNoPlaces(t *testing.T) {
	cat, err := tables.NewCatalog(tables.Def{
		Name: "t", Primary: tables.Hash, Twin: tables.TwinSync, Columns: []tables.Column{{Name: "n", Type: tables.Int64}},
		Partition: tables.Partitioning{Kind: tables.ByHash},
	})
	if err != nil {
		t.Fatal(err)
	}
	fs, twin := vfs.NewMem(), cat.Tables[0].Twin()
	for life := range 2 {
		cl, err := Embedded(t.Context(), EmbeddedConfig{
			Catalog: cat, Servers: 1, Partitions: 1, MemoryBytes: 64 << 20, Durability: Disk, Dir: "data", FS: fs, SegmentBytes: 1 << 20,
		})
		if err != nil {
			t.Fatal(err)
		}
		p := cl.Servers[0].parts.of[0]
		if life == 0 {
			p.mu.Lock()
			v := p.commit(&wire.Part{Writes: []wire.Write{{Index: uint16(twin.ID), Op: wire.Insert, Key: index.Num(7), Row: bytes.Repeat([]byte{0xff}, 8)}}})
			p.mu.Unlock()
			if !v.ok() {
				t.Fatal(v)
			}
		}
		if e := p.index(twin.ID).Get(index.Num(7), nil); e.Status != index.Found || e.Row[0] != 0 {
			t.Errorf("life %d: %v, place %#x, want an entry without one", life, e.Status, e.Row)
		}
		if err := cl.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
