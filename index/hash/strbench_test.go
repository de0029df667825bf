package hash

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"drtmx/index"
	"drtmx/internal/block"
)

// benchKinds are the keys of BenchmarkKinds, with rows of 100 bytes: the same
// table with native keys, and with strings of several lengths.
var benchKinds = []struct {
	name string
	str  func(i int) string // nil: native
}{
	{"native, 8 B", nil},
	{"string, 8 B", func(i int) string { return string(index.AppendNum(nil, uint64(i))) }},
	{"string, 24 B", func(i int) string { return fmt.Sprintf("customer/%015d", i) }},
	{"string, 200 B in common", func(i int) string { return strings.Repeat("warehouse/", 20) + fmt.Sprintf("%08d", i) }},
}

const (
	benchRows     = 1 << 16
	benchRowWords = 13 // 100 bytes
)

func benchKind(b *testing.B, str func(i int) string, cache int) (x *bench, keys []index.Key) {
	b.Helper()
	for i := range benchRows {
		if str == nil {
			keys = append(keys, index.Num(uint64(i)))
		} else {
			keys = append(keys, index.Str(str(i)))
		}
	}
	x = newBench(b, Options{Strings: str != nil, RowWords: benchRowWords}, ClientOptions{LocationCacheEntries: cache}, false)
	row := make([]uint64, benchRowWords)
	for i, key := range keys {
		if err := x.s.Load(key, row, block.Present(block.NewCSN(1, uint64(i+1)))); err != nil {
			b.Fatal(err)
		}
	}
	if err := x.c.Maintain(context.Background(), x.conn); err != nil {
		b.Fatal(err)
	}
	return x, keys
}

// BenchmarkKinds compares kinds of keys: a lookup of the client half, with and
// without remembered locations, and an insert, an update and a lookup of the
// server half. Rounds, READs and bytes are exact.
func BenchmarkKinds(b *testing.B) {
	for _, kind := range benchKinds {
		for name, cache := range map[string]int{"Get": 0, "Get, location cached": 2 * benchRows} {
			b.Run(kind.name+"/"+name, func(b *testing.B) {
				x, keys := benchKind(b, kind.str, cache)
				for _, key := range keys {
					x.getKey(b, key)
				}
				before, bytes := x.c.Stats(), x.conn.Counters().ReadBytes
				b.ReportAllocs()
				for i := 0; b.Loop(); i = (i + 0x9e3779b1) % benchRows {
					if res, _ := x.getKey(b, keys[i]); res.Status != index.Found || len(res.Row) != benchRowWords {
						b.Fatal(res.Status)
					}
				}
				after, n := x.c.Stats(), float64(b.N)
				b.ReportMetric(float64(after.Rounds-before.Rounds)/n, "rounds/op")
				b.ReportMetric(float64(after.Reads-before.Reads)/n, "READs/op")
				b.ReportMetric(float64(x.conn.Counters().ReadBytes-bytes)/n, "READ-B/op")
			})
		}
		b.Run(kind.name+"/server", func(b *testing.B) { benchServer(b, kind.str) })
	}
}

func benchServer(b *testing.B, str func(i int) string) {
	x, keys := benchKind(b, str, 0)
	st := x.s.Stats()
	row, csn := make([]uint64, benchRowWords), uint64(1<<24)
	write := func(b *testing.B, key index.Key, del bool) {
		held, err := x.s.LockWrite(1, key, 0)
		if err != nil {
			b.Fatal(err)
		}
		csn++
		if del {
			x.s.PublishDelete(held, block.Absent(block.NewCSN(1, csn)))
			return
		}
		if err := x.s.Reserve(held, len(row)); err != nil {
			b.Fatal(err)
		}
		x.s.Publish(held, row, block.Present(block.NewCSN(1, csn)))
	}
	b.Run("Get", func(b *testing.B) {
		for i := 0; b.Loop(); i = (i + 0x9e3779b1) % benchRows {
			if res := x.s.Get(keys[i], row); res.Status != index.Found {
				b.Fatal(res.Status)
			}
		}
		b.ReportMetric(float64(st.RowBytes)/float64(st.Rows), "row-B/row")
		b.ReportMetric(float64(st.IndexBytes)/float64(st.Rows), "index-B/row")
	})
	b.Run("update", func(b *testing.B) {
		for i := 0; b.Loop(); i = (i + 0x9e3779b1) % benchRows {
			write(b, keys[i], false)
		}
	})
	b.Run("delete+insert", func(b *testing.B) {
		for i := 0; b.Loop(); i = (i + 0x9e3779b1) % benchRows {
			write(b, keys[i], true)
			write(b, keys[i], false)
		}
	})
}
