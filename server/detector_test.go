package server_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// TestViewsUnderDetector: Views of many rows succeed beside writers. `make race`
// runs it as the tests of a program that embeds the engine run under the race
// detector: without assertions, and with regions that the detector does not see.
func TestViewsUnderDetector(t *testing.T) {
	for _, f := range vaultFabrics(t) {
		t.Run(f.name, func(t *testing.T) {
			const rows = 2000
			v := startVaults(t, f, 2, rows, nil)
			seed := testseed.Of(t)
			tab := v.table("tree")
			ctx, cancel := context.WithCancel(t.Context())
			var writers sync.WaitGroup
			defer func() { cancel(); writers.Wait() }()
			var moved atomic.Int64
			for w := range 4 {
				s, err := v.db.NewSession(ctx)
				if err != nil {
					t.Fatal(err)
				}
				rng := rand.New(rand.NewPCG(seed, uint64(w)))
				writers.Go(func() {
					defer s.Close()
					for ctx.Err() == nil {
						if err := v.transfer(ctx, s, tab, rng); err == nil {
							moved.Add(1)
						} else if ctx.Err() == nil {
							t.Error(err)
							return
						}
					}
				})
			}
			views := 0
			for end := time.Now().Add(simTime(t, time.Second)); time.Now().Before(end) || views < 3; views++ {
				var sum int64
				if err := v.db.View(ctx, func(x *txn.Txn) (err error) {
					sum, _, err = v.total(x, tab)
					return err
				}); err != nil {
					t.Fatalf("View %d: %v", views, err)
				}
				if sum != rows*vaultBalance {
					t.Fatalf("View %d: total %d, want %d", views, sum, rows*vaultBalance)
				}
			}
			cancel()
			writers.Wait()
			t.Logf("%d Views of %d rows beside %d transfers", views, rows, moved.Load())
		})
	}
}

// TestOrderUnderDetector: what a program did before it wrote a row happens
// before what another goroutine does after it has read the row, without a lock of
// their own. The race detector is the judge.
func TestOrderUnderDetector(t *testing.T) {
	catalog := vaultCatalog(t)
	tab := catalog.MustTable("hash")
	notes := make([]string, 40) // the first half by Updates, the rest by procedures
	note := func(x *txn.Txn, i int) error {
		notes[i] = strings.Repeat("x", i)
		return x.Put(tab, tables.Num(uint64(i)), tab.NewRow())
	}
	c, err := server.Embedded(t.Context(), server.EmbeddedConfig{
		Catalog: catalog,
		Procedures: []txn.Procedure{{Name: "note", Body: func(_ context.Context, x *txn.Txn, args []byte) ([]byte, error) {
			return nil, note(x, int(args[0]))
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var sessions [2]*txn.Session // the pool of the DB would order the goroutines
	for i := range sessions {
		if sessions[i], err = c.DB.NewSession(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer sessions[i].Close()
	}
	var reader sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer func() { cancel(); reader.Wait() }()
	reader.Go(func() {
		for i := range notes {
			for {
				err := sessions[0].View(ctx, func(x *txn.Txn) error {
					_, err := x.Get(tab, tables.Num(uint64(i)))
					return err
				})
				if err == nil {
					break
				}
				if !errors.Is(err, txn.ErrNotFound) {
					if ctx.Err() == nil {
						t.Error(err)
					}
					return
				}
			}
			if len(notes[i]) != i {
				t.Errorf("note %d has %d bytes", i, len(notes[i]))
			}
		}
	})
	for i := range notes {
		if i < len(notes)/2 {
			err = sessions[1].Update(ctx, func(x *txn.Txn) error { return note(x, i) })
		} else {
			_, err = sessions[1].Call(ctx, 0, "note", []byte{byte(i)})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	reader.Wait()
}
