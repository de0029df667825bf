package learned

import (
	"fmt"
	"os"
	"testing"
	"time"

	"drtmx/index/indextest"
	"drtmx/index/learned/read"
	"drtmx/internal/testseed"
)

// TestPastOfClients asks both halves about past ticks, of rows inline, apart and of string
// keys, while keys live and die and leaves split and are merged.
func TestPastOfClients(t *testing.T) {
	seed := indextest.Seed(t)
	for i, v := range indextest.Variants() {
		for kind, o := range pastOptions() {
			for _, readers := range []int{0, 2} {
				for round := range rounds() {
					budget := read.Budget((i + round) % 5)
					t.Run(fmt.Sprintf("%s/%s/readers=%d/%d", v.Name, kind, readers, round), func(t *testing.T) {
						p := indextest.PastRun{
							Variant: v, Seed: seed + uint64(round), Ops: indextest.Length(6000), Readers: readers, Keys: 60 + 340*(round%2),
							RowWords: 5, Ordered: true,
						}
						if o.Strings {
							p.KeyOf, p.RowWords, p.Variable = indextest.StringKeys(p.Keys), 40, true
						}
						if round%3 == 2 {
							p.Bytes = 20 << 10
						}
						stats, err := indextest.CheckPast(engine(o, read.Options{Cache: read.Cache{Budget: budget, TTBytes: 64}}), p)
						if err != nil {
							t.Error(err)
						}
						t.Logf("%+v", stats)
					})
				}
			}
		}
	}
}

// rounds is how often the runs of TestPastOfClients are repeated.
func rounds() int {
	switch {
	case os.Getenv("DRTMX_LONG") != "":
		return 60
	case testing.Short() || !testseed.Soaking():
		return 1
	}
	return 3
}

func pastOptions() map[string]Options {
	return map[string]Options{
		"inline":  {Inline: Yes, SlotsPerLeaf: 8, LeavesPerSubModel: 16, Quarantine: 50 * time.Millisecond},
		"apart":   {Inline: No, SlotsPerLeaf: 8, LeavesPerSubModel: 16},
		"strings": {Strings: true, SlotsPerLeaf: 8, LeavesPerSubModel: 16},
	}
}
