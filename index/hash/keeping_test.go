package hash_test

import (
	"sync"
	"testing"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/internal/block"
	"drtmx/internal/clock"
)

// keepsPast makes the engine keep its past, for a few ticks. Ticks pass between
// operations of the mutator.
func keepsPast(eng indextest.Engine) indextest.Engine {
	const retain = 3
	var mu sync.Mutex
	envs := map[index.Server]*indextest.Env{}
	create := eng.NewServer
	eng.NewServer = func(e *indextest.Env, rowWords int) (index.Server, error) {
		s, err := create(e, rowWords)
		if err == nil {
			e.Arena.History().Keep(retain, 1<<30, e.Arena.LastCSN().Tick())
			mu.Lock()
			envs[s] = e
			mu.Unlock()
		}
		return s, err
	}
	eng.Tick = func(s index.Server) {
		mu.Lock()
		e := envs[s]
		mu.Unlock()
		now := e.Arena.LastCSN().Tick()
		e.Arena.CoverCSN(block.NewCSN(now+1, 0))
		h := e.Arena.History()
		h.Close(now)
		s.Bury(min(h.Floor(), clock.Tick(block.MaxTick)), 20)
	}
	return eng
}

// TestConformanceWithPast: readers of the present do not notice what readers of
// the past need.
func TestConformanceWithPast(t *testing.T) {
	t.Run("numbers", func(t *testing.T) { indextest.RunPoint(t, keepsPast(engine(256)), true) })
	t.Run("strings", func(t *testing.T) { indextest.RunPoint(t, keepsPast(stringEngine(256)), true) })
}
