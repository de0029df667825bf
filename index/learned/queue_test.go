package learned

import (
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
)

// TestModelsOfAQueue: rows are appended at one end of a table and deleted at the other,
// as of a queue. The number of sub-models follows that of the rows that are there, not of
// those that have been.
func TestModelsOfAQueue(t *testing.T) {
	const leavesPerSub, slots, rows, rounds = 16, 8, 6000, 60
	e, s := plainServer(t, leavesPerSub, slots)
	write := func(k uint64, del bool) {
		t.Helper()
		held, err := s.LockWrite(1, index.Num(k), 0)
		if err != nil {
			t.Fatal(err)
		}
		csn := e.Arena.NextCSN()
		if del {
			s.PublishDelete(held, block.Absent(csn))
		} else {
			s.Publish(held, []uint64{k}, block.Present(csn))
		}
	}
	now := time.Second
	maintain := func() {
		now += time.Second
		e.Idle(2 * block.Quarantine)
		for s.Maintain(now, nil) {
		}
	}
	most, next := uint64(0), uint64(0)
	for round := range rounds {
		for range rows / 10 {
			write(next, false)
			if next >= rows {
				write(next-rows, true)
			}
			next++
			if next%50 == 0 {
				maintain()
			}
		}
		if round == rounds/2 {
			most = s.Stats().SubModels
		}
	}
	t.Logf("%d sub-models in the middle, %d at the end", most, s.Stats().SubModels)
	if n := s.Stats().SubModels; n > most+most/4 {
		t.Errorf("%d sub-models after %d rows, %d after %d", most, next/2, n, next)
	}
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}
