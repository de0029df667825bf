package command

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"drtmx/internal/metrics"
	"drtmx/internal/placement"
	"drtmx/txn/stats"
)

// recoveries are those of data servers that do not serve yet. On a terminal they
// are a bar, of the server that is least advanced. The zero value has none.
type recoveries struct {
	mu  sync.Mutex
	of  map[placement.Server]stats.Recovering
	bar *progress
}

// phasesOfRecovery are in the order in which they come.
var phasesOfRecovery = []string{"checkpoint", "log", "models"}

// set takes how far a server is. a shows it.
func (r *recoveries) set(a *app, server placement.Server, now stats.Recovering) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of, r.bar = map[placement.Server]stats.Recovering{}, a.progressOf("recovering")
	}
	r.of[server] = now
	last := r.sorted()[0]
	r.bar.set(int64(100*last.Ratio()), 100, "data server %d, %s, %.0f s", last.Server, last.Phase, last.Seconds)
}

// sorted are the recoveries, the least advanced first. The caller holds r.mu.
func (r *recoveries) sorted() (all []metrics.Recovering) {
	for _, server := range slices.Sorted(maps.Keys(r.of)) {
		all = append(all, metrics.Recovering{Server: int(server), Recovering: r.of[server]})
	}
	slices.SortStableFunc(all, func(a, b metrics.Recovering) int {
		return cmp.Or(cmp.Compare(slices.Index(phasesOfRecovery, a.Phase), slices.Index(phasesOfRecovery, b.Phase)), cmp.Compare(a.Ratio(), b.Ratio()))
	})
	return all
}

func (r *recoveries) list() []metrics.Recovering {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sorted()
}

// done is called when all servers serve, or none will.
func (r *recoveries) done() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bar != nil {
		r.bar.done()
	}
	r.of, r.bar = nil, nil
}
