package mem

import (
	"runtime"
	"sync"
	"testing"
)

// TestCounter: readers beside the goroutine that adds see sums that never fall, and the last one in the end.
func TestCounter(t *testing.T) {
	const adds = 100_000
	var c Counter
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for last := uint64(0); last < 3*adds; runtime.Gosched() {
				n := c.Load()
				if n < last || n%3 != 0 {
					t.Errorf("%d after %d", n, last)
					return
				}
				last = n
			}
		})
	}
	for i := range adds {
		c.Add(3)
		if i%1000 == 0 {
			runtime.Gosched()
		}
	}
	wg.Wait()
	if c.Load() != 3*adds {
		t.Errorf("%d, want %d", c.Load(), 3*adds)
	}
}
