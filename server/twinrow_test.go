package server

import (
	"fmt"
	"testing"

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
