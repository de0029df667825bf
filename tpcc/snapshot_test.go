package tpcc

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/server"
	"drtmx/txn"
)

// TestCheckBesideTheMix: every condition that does not span warehouses holds in
// snapshots beside terminals that run the full mix, and the check ends.
func TestCheckBesideTheMix(t *testing.T) {
	cl, err := server.Embedded(t.Context(), server.EmbeddedConfig{
		Catalog: Catalog(), Procedures: Procedures(), Servers: 2, MemoryBytes: 512 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	e := &engine{Cluster: cl}
	e.populate(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var done atomic.Int64
	for i := range 4 {
		term, g := e.terminal(t, TerminalConfig{}), NewInputs(rng.New(uint64(i)), e.info, e.info.RunConstants(rng.New(2)))
		wg.Go(func() {
			var no NewOrderInput
			var noOut NewOrderOutput
			var pay PaymentInput
			var payOut PaymentOutput
			var del DeliveryInput
			var delOut DeliveryOutput
			w := int64(1 + i%2)
			for ; ctx.Err() == nil; done.Add(1) {
				g.NewOrder(w, &no)
				g.Payment(w, &pay)
				g.Delivery(w, &del)
				for _, err := range []error{
					term.NewOrder(ctx, &no, &noOut), term.Payment(ctx, &pay, &payOut), term.Delivery(ctx, &del, &delOut),
				} {
					if err != nil && ctx.Err() == nil && !errors.Is(err, ErrRolledBack) && !errors.Is(err, txn.ErrConflict) {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	time.Sleep(50 * time.Millisecond)
	before := done.Load()
	start := time.Now()
	for begin := start; !t.Failed() && done.Load() == before && time.Since(begin) < testseed.Patience(); {
		start = time.Now()
		verdicts, err := Check(ctx, e.DB, CheckConfig{})
		if err == nil {
			err = verdicts.Err()
		}
		if err != nil {
			t.Error(err)
		}
	}
	took := time.Since(start)
	cancel()
	wg.Wait()
	rounds := done.Load() - before
	if rounds == 0 {
		t.Error("nothing ran beside the check")
	}
	t.Logf("checked in %v beside %d rounds of NEW-ORDER, PAYMENT and DELIVERY", took, rounds)
}
