package server

import (
	"testing"

	"drtmx/internal/invariants"
	"drtmx/tables"
	"drtmx/txn"
)

// TestManyViewsAtOnce: more goroutines than a server takes connections from begin
// a View at the same time, on sessions of the pool and on their own. All end, over
// every fabric.
func TestManyViewsAtOnce(t *testing.T) {
	n := 5000
	if testing.Short() || invariants.Enabled {
		n = 1500 // more than may be in their handshakes
	}
	const rows = 100
	for _, name := range []string{"inproc", "shm", "tcp"} {
		for _, way := range []string{"pool", "sessions"} {
			t.Run(name+"/"+way, func(t *testing.T) {
				p := deadlineFabrics(t)[name]
				if p == nil {
					t.Skip("no such fabric on this system")
				}
				c := startOver(t, name, p, rows)
				var sessions []*txn.Session
				if way == "sessions" {
					sessions = ownSessions(t, c.db, n)
				}
				begin, errs := make(chan struct{}), make(chan error, n)
				for g := range n {
					view := c.db.View
					if sessions != nil {
						view = sessions[g].View
					}
					go func() {
						<-begin
						errs <- view(t.Context(), func(x *txn.Txn) error {
							_, err := x.Get(c.acct, tables.Num(uint64(g%rows)))
							return err
						})
					}()
				}
				close(begin)
				failed := 0
				for range n {
					if err := <-errs; err != nil {
						if failed++; failed <= 3 {
							t.Error(err)
						}
					}
				}
				t.Logf("%d of %d Views have failed; %d connections", failed, n, c.dials.Load())
			})
		}
	}
}
