package hash

import (
	"context"
	"testing"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/rng"
	"drtmx/internal/testseed"
)

// A lookup that is told where the row is takes one round, and one that is told wrongly answers as any
// other: other rows' places, those of rows that are deleted, and addresses that no row can have.
func TestPlaces(t *testing.T) {
	for _, checksums := range []bool{false, true} {
		seed := testseed.Of(t)
		s := rng.New(seed)
		x := newBench(t, Options{RowWords: 4}, ClientOptions{}, checksums)
		const n = 500
		csn := uint64(0)
		write := func(k uint64) uint64 {
			csn++
			h, err := x.s.LockWrite(1, index.Num(k), 0)
			if err != nil {
				t.Fatal(err)
			}
			x.s.Publish(h, []uint64{k, k, k, k}, block.Present(block.NewCSN(1, csn)))
			return h.Addr
		}
		var places []uint64
		for k := range uint64(n) {
			places = append(places, write(k))
		}
		for k := range uint64(n) {
			write(k) // rows keep their places
		}
		if err := x.c.Maintain(context.Background(), x.conn); err != nil {
			t.Fatal(err)
		}
		get := func(k, place uint64) (*index.GetResult, int) {
			x.op.Start(index.Num(k))
			x.op.(index.PlacedGetter).Place(place)
			return x.finish(t)
		}
		for k, place := range places {
			if res, rounds := get(uint64(k), place); res.Status != index.Found || res.Row[0] != uint64(k) || rounds != 1 {
				t.Fatalf("key %d at its place: %v in %d rounds", k, res.Status, rounds)
			}
		}
		for k := uint64(0); k < n; k += 2 {
			csn++
			h, err := x.s.LockWrite(1, index.Num(k), 0)
			if err != nil {
				t.Fatal(err)
			}
			x.s.PublishDelete(h, block.Absent(block.NewCSN(1, csn)))
		}
		for range 20 * n {
			k, place := s.Uint64n(n+10), places[s.Intn(n)]
			if s.Bool(0.2) {
				place = s.Uint64() | 1
			}
			want := index.NotFound
			if k < n && k%2 == 1 {
				want = index.Found
			}
			if res, _ := get(k, place); res.Status != want || want == index.Found && res.Row[3] != k {
				t.Fatalf("key %d with the place %#x: %v, want %v", k, place, res.Status, want)
			}
		}
		if res, rounds := x.get(t, 1); res.Status != index.Found || rounds != 2 {
			t.Errorf("a lookup after that, without a place: %v in %d rounds", res.Status, rounds)
		}
	}
}
