package server

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/tables"
	"drtmx/txn"
)

// TestLoserEnds: an Update takes so long that others change what it has read in
// every attempt. It has its turn after a few lost attempts, whether its attempts
// read the same rows or others each time, on one server or on two, and the
// others go on.
func TestLoserEnds(t *testing.T) {
	for _, servers := range []int{1, 2} {
		for _, same := range []bool{true, false} {
			loser(t, servers, same)
		}
	}
}

const loserAttempts = 12

func loser(t *testing.T, servers int, same bool) {
	const writers, rows, reads = 8, 200, 20
	cl, acct, _ := startBank(t, servers)
	putAccounts(t, cl.DB, acct, rows, startBalance)
	ctx, cancel := context.WithTimeout(context.Background(), testseed.Patience())
	defer cancel()
	stop := make(chan struct{})
	counts := make([]atomic.Int64, writers)
	var wg sync.WaitGroup
	for g := range counts {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(3, uint64(g)))
			for {
				select {
				case <-stop:
					return
				default:
				}
				id := r.Uint64N(rows)
				if err := cl.DB.Update(ctx, func(tx *txn.Txn) error { return deposit(tx, acct, id, id) }); err != nil {
					t.Errorf("a writer: %v", err)
					return
				}
				counts[g].Add(1)
			}
		})
	}
	attempts, r := 0, rand.New(rand.NewPCG(4, 4))
	err := cl.DB.Update(ctx, func(tx *txn.Txn) error {
		attempts++
		first := uint64(0)
		if !same {
			first = r.Uint64N(rows)
		}
		for i := range uint64(reads) {
			row, err := tx.Get(acct, tables.Num((first+i)%rows))
			if err != nil {
				return err
			}
			row = slices.Clone(row)
			row.SetInt(acct.Field("balance"), row.Int(acct.Field("balance"))+1)
			if err := tx.Update(acct, tables.Num((first+i)%rows), row); err != nil {
				return err
			}
		}
		time.Sleep(5 * time.Millisecond)
		return nil
	})
	held := func() bool {
		for g := range counts {
			if counts[g].Load() == 0 {
				return true
			}
		}
		return false
	}
	for held() && ctx.Err() == nil && !t.Failed() {
		time.Sleep(time.Millisecond)
	}
	close(stop)
	wg.Wait()
	t.Logf("%d servers, the same rows: %v: %d attempts", servers, same, attempts)
	if err != nil || attempts > loserAttempts {
		t.Errorf("%d servers, the same rows %v: after %d attempts, want at most %d: %v", servers, same, attempts, loserAttempts, err)
	}
	if held() {
		t.Error("a writer is held up for ever")
	}
}
