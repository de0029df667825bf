package hash_test

import (
	"fmt"
	"testing"

	"drtmx/index/indextest"
)

// pastOf is a run of an engine that keeps the past.
func pastOf(eng indextest.Engine, v indextest.Variant, seed uint64, keys, words, readers int) indextest.PastRun {
	o := indextest.PastRun{Variant: v, Seed: seed, Ops: indextest.Length(6000), Readers: readers, Keys: keys, RowWords: words}
	if readers > 0 {
		o.Ops /= 2
	}
	if eng.Strings {
		o.KeyOf, o.RowWords, o.Variable, o.Ops = indextest.StringKeys(keys), words*words, true, o.Ops/2
	}
	return o
}

// TestPast: answers of both halves about closed ticks, of an index that splits
// and whose rows move, of one thread and beside a mutator.
func TestPast(t *testing.T) {
	seed := indextest.Seed(t)
	for _, c := range []struct {
		name string
		eng  indextest.Engine
	}{
		{"no location cache", engine(0)},
		{"location cache", engine(256)},
		{"strings", stringEngine(0)},
		{"strings, location cache", stringEngine(256)},
	} {
		for _, v := range indextest.Variants() {
			t.Run(c.name+"/"+v.Name, func(t *testing.T) {
				for i, keys := range []int{6, 60, 1500 / indextest.Scale} {
					for j, words := range []int{1, 9, 30} {
						o := pastOf(c.eng, v, seed+uint64(16*i+j), keys, words, j)
						if j == 1 && keys < 1000 { // less than is retained otherwise
							o.Bytes = uint64(o.RowWords) << 13
						}
						stats, err := indextest.CheckPast(c.eng, o)
						if err != nil {
							t.Fatal(fmt.Errorf("%d keys, %d words, %d readers: %w", keys, words, j, err))
						}
						t.Logf("%d keys, %d words: %+v", keys, words, stats)
					}
				}
			})
		}
	}
}
