package exec

import (
	"encoding/binary"
	"slices"
	"testing"

	"drtmx/index"
	"drtmx/internal/rng"
	"drtmx/internal/wire"
	"drtmx/tables"
)

func TestLoadOrder(t *testing.T) {
	type loaded struct {
		key index.Key
		row string
	}
	for _, ix := range []*tables.Index{{RowBytes: 8}, {Strings: true}} {
		r := rng.New(7)
		var o loadOrder
		head := []byte("head")
		var queues [2][]byte // buffers change between them
		for round := range 20 {
			var want []loaded
			b := append(queues[round%2][:0], head...)
			for i := range round {
				n := r.Intn(8) // some twice
				row := binary.LittleEndian.AppendUint64(nil, uint64(i))
				if ix.Strings {
					k := index.Str(string(rune('a'+n)) + "key")
					want = append(want, loaded{k, string(row)})
					b = wire.AppendBytes(wire.AppendKey(b, k, true), row)
				} else {
					want = append(want, loaded{index.Num(uint64(n)), string(row)})
					b = append(binary.LittleEndian.AppendUint64(b, uint64(n)), row...)
				}
			}
			slices.SortStableFunc(want, func(x, y loaded) int { return x.key.Compare(y.key) })
			b = o.ascending(ix, b, len(head))
			if string(b[:len(head)]) != string(head) {
				t.Fatalf("a message begins with %q", b[:len(head)])
			}
			var got []loaded
			d := wire.NewDecoder(b[len(head):])
			for d.Left() > 0 {
				if ix.Strings {
					k, _ := d.Key()
					got = append(got, loaded{k.Clone(), string(d.Bytes())})
				} else {
					k := index.Num(d.U64())
					got = append(got, loaded{k, string(d.Take(ix.RowBytes))})
				}
			}
			if d.Err() != nil || !slices.Equal(got, want) {
				t.Fatalf("strings %v, %d rows: %v (%v), want %v", ix.Strings, round, got, d.Err(), want)
			}
			queues[round%2] = b
		}
	}
}
