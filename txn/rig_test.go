package txn_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/rdma/inproc"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// boundary is the first key of the second partition in the rig's tables.
const boundary = 1 << 20

// rig is an embedded cluster with two partitions. The rows of table wide are
// too large to lie in a leaf; the rows of table text are of any size.
type rig struct {
	*server.Cluster
	net        *inproc.Network
	wide, text *tables.Table
}

// wideColumns make a row of table wide larger than what a leaf holds inline.
const wideColumns = 40

func rigCatalog(t testing.TB) *tables.Catalog {
	t.Helper()
	var columns []tables.Column
	for i := range wideColumns {
		columns = append(columns, tables.Column{Name: fmt.Sprintf("c%d", i), Type: tables.Int64})
	}
	c, err := tables.NewCatalog(
		tables.Def{
			Name: "wide", Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByRange, Bounds: []tables.Key{tables.Num(boundary)}},
			Columns: columns,
		},
		tables.Def{
			Name: "text", Key: tables.StringKey, Primary: tables.Ordered,
			Partition: tables.Partitioning{Kind: tables.ByRange, Bounds: []tables.Key{tables.Str("m")}},
			Columns:   []tables.Column{{Name: "body", Type: tables.Bytes}},
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newRig(t testing.TB, servers int, client txn.Config, procedures func(*tables.Catalog) []txn.Procedure) *rig {
	t.Helper()
	cat, net := rigCatalog(t), inproc.New(inproc.Options{})
	if client.Retry == (txn.Retry{}) {
		client.Retry.Patience = testseed.Patience()
	}
	c := server.EmbeddedConfig{
		Catalog: cat, Servers: servers, Partitions: 2, Network: net, Client: client, MemoryBytes: 1 << 30,
		Retain: time.Minute, // for slow machines
	}
	if procedures != nil {
		c.Procedures = procedures(cat)
	}
	cl, err := server.Embedded(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	})
	return &rig{cl, net, cat.MustTable("wide"), cat.MustTable("text")}
}

// body is a row of table text that holds n bytes.
func body(tab *tables.Table, n int) tables.Row {
	row := tab.NewRow()
	row.SetBytes(tab.Field("body"), []byte(strings.Repeat("x", n)))
	return row
}

// fillWide puts rows from key on, n of them, each holding its key.
func (r *rig) fillWide(t testing.TB, key uint64, n int) {
	t.Helper()
	for at := 0; at < n; at += 500 {
		if err := r.DB.Update(t.Context(), func(x *txn.Txn) error {
			row := r.wide.NewRow()
			for i := at; i < min(n, at+500); i++ {
				row.SetInt(r.wide.Field("c0"), int64(key)+int64(i))
				if err := x.Put(r.wide, tables.Num(key+uint64(i)), row); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// textKey is the i-th key of a partition in table text.
func textKey(part, i int) tables.Key {
	return tables.Str(binary.BigEndian.AppendUint32([]byte([]string{"a", "z"}[part]), uint32(i)))
}

func (r *rig) fillText(t testing.TB, part, n, size int) {
	t.Helper()
	for i := range n {
		if err := r.DB.Update(t.Context(), func(x *txn.Txn) error {
			return x.Put(r.text, textKey(part, i), body(r.text, size))
		}); err != nil {
			t.Fatal(err)
		}
	}
}
