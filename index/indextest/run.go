package indextest

import (
	"errors"
	"fmt"
	"testing"

	"drtmx/index"
)

func isFull(err error) bool { return errors.Is(err, index.ErrFull) }

// RunPoint holds an engine to the contract of index.Server and index.Client.
// rowsStay is for engines whose rows never move: a row's proof must then
// outlive all changes but those of the row.
func RunPoint(t *testing.T, eng Engine, rowsStay bool) { run(t, eng, rowsStay, false) }

// RunOrdered is RunPoint and the contract of scans.
func RunOrdered(t *testing.T, eng Engine, rowsStay bool) { run(t, eng, rowsStay, true) }

func run(t *testing.T, eng Engine, rowsStay, ordered bool) {
	seed := Seed(t)
	variants := Variants()
	for i, v := range variants {
		// The race detector finds little in what one goroutine does: beside it, only
		// the plainest and the worst fabric have those cases.
		all := !testing.Short() || i == 0 || i == len(variants)-1
		t.Run(v.Name, func(t *testing.T) {
			t.Run("concurrent", func(t *testing.T) { runConcurrent(t, eng, v, seed, ordered) })
			if !all {
				return
			}
			t.Run("model", func(t *testing.T) { runModel(t, eng, v, seed, rowsStay, ordered) })
			if !eng.Coarse {
				t.Run("rests", func(t *testing.T) {
					if err := CheckRests(eng, v, seed); err != nil {
						t.Error(err)
					}
				})
			}
			t.Run("locks", func(t *testing.T) {
				if err := CheckLocks(eng, v, seed); err != nil {
					t.Error(err)
				}
			})
			t.Run("visit", func(t *testing.T) {
				if err := CheckVisit(eng, v, seed); err != nil {
					t.Error(err)
				}
			})
			t.Run("bounded", func(t *testing.T) {
				if err := CheckBounded(eng, v, seed); err != nil {
					t.Error(err)
				}
			})
			t.Run("full", func(t *testing.T) {
				if err := CheckFull(eng, v, seed); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func runModel(t *testing.T, eng Engine, v Variant, seed uint64, rowsStay, ordered bool) {
	for i, keys := range []int{8, 60, 400, 2000} {
		for j, words := range []int{0, 1, 5, 13} {
			o := ModelRun{
				Variant: v, Seed: seed + uint64(16*i+j), Ops: Length(4000), Keys: keys, RowWords: words,
				Ordered: ordered, RowsStay: rowsStay,
			}
			if eng.Strings {
				o.KeyOf, o.RowWords, o.Variable, o.Ops = StringKeys(keys), words*words, words > 0, o.Ops/2
			}
			if err := CheckModel(eng, o); err != nil {
				t.Fatal(fmt.Errorf("%d keys, %d words: %w", keys, words, err))
			}
		}
	}
}

func runConcurrent(t *testing.T, eng Engine, v Variant, seed uint64, ordered bool) {
	for i, keys := range []int{16, 200, 4000} {
		o := ConcurrentRun{
			Variant: v, Seed: seed + uint64(i), Ops: Length(60000), Readers: 3, Keys: keys, RowWords: 5 + 8*i, Ordered: ordered,
		}
		if eng.Strings {
			o.KeyOf, o.RowWords, o.Variable, o.Ops = StringKeys(keys), 5+40*i, true, o.Ops/2
		}
		stats, err := CheckConcurrent(eng, o)
		if err != nil {
			t.Fatal(fmt.Errorf("%d keys: %w", keys, err))
		}
		t.Logf("%d keys: %+v", keys, stats)
	}
}
