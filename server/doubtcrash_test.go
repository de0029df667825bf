package server

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/tables"
	"drtmx/txn"
)

// pair is two accounts of different servers between which one client alone
// transfers.
type pair struct {
	from, to     uint64
	tried, acked atomic.Int64
}

// pairsOf returns disjoint pairs of accounts of different servers.
func pairsOf(cl *Cluster, acct *tables.Table, n int) (pairs []*pair) {
	var rest []uint64
	for id := uint64(0); len(pairs) < n; id++ {
		found := false
		for i, other := range rest {
			if HomeOf(cl.DB, acct, tables.Num(id)) != HomeOf(cl.DB, acct, tables.Num(other)) {
				pairs = append(pairs, &pair{from: other, to: id})
				rest = append(rest[:i], rest[i+1:]...)
				found = true
				break
			}
		}
		if !found {
			rest = append(rest, id)
		}
	}
	return pairs
}

// TestCrashesOfAll kills all servers at any moment of transfers between servers,
// with any part of what was not synced, and starts them again. What a client was
// told is there, nothing is half there, and nobody stays locked.
func TestCrashesOfAll(t *testing.T) {
	t.Parallel()
	t.Run("log", func(t *testing.T) { crashAll(t, false) })
	t.Run("checkpoints", func(t *testing.T) { crashAll(t, true) })
}

// repeatCheckpoints makes checkpoints of all servers, one after the other, until
// ctx ends. It returns how many there are.
func repeatCheckpoints(ctx context.Context, cl *Cluster) (n int, err error) {
	for ctx.Err() == nil && err == nil {
		for _, s := range cl.Servers {
			if e := s.durable.checkpoints.run(ctx); e == nil {
				n++
			} else if ctx.Err() == nil {
				err = e
			}
		}
	}
	return n, err
}

// crashAll is TestCrashesOfAll, with checkpoints all the time or with none.
func crashAll(t *testing.T, checkpoints bool) {
	const clients, rounds, shared, balance = 6, 12, 10, 1 << 20
	seed, made := testseed.Of(t), 0
	r := rand.New(rand.NewPCG(seed, 0))
	fs := vfstest.NewCrashableMem()
	cl, acct, _ := openBank(t, fs, 3, 3)
	putAccounts(t, cl.DB, acct, 100, balance)
	pairs := pairsOf(cl, acct, clients)
	doubts := 0
	for round, begin := 0, time.Now(); round < rounds || checkpoints && made == 0 && time.Since(begin) < testseed.Patience(); round++ {
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for i, p := range pairs {
			wg.Go(func() {
				own := rand.New(rand.NewPCG(seed, uint64(round*clients+i+1)))
				for ctx.Err() == nil {
					p.tried.Add(1)
					if err := cl.DB.Update(ctx, func(t *txn.Txn) error { return transfer(t, acct, p.from, p.to, 1) }); err == nil {
						p.acked.Add(1)
					}
					from, to := 80+own.Uint64N(shared), 80+own.Uint64N(shared)
					if from != to {
						_ = cl.DB.Update(ctx, func(t *txn.Txn) error { return transfer(t, acct, from, to, own.Int64N(5)) })
					}
				}
			})
		}
		if checkpoints {
			wg.Go(func() {
				n, err := repeatCheckpoints(ctx, cl)
				if made += n; err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		time.Sleep(time.Duration(r.IntN(60*(1+round/rounds))) * time.Millisecond) // longer if no checkpoint ends in that
		var least, most [clients]int64
		for i, p := range pairs {
			least[i] = p.acked.Load()
		}
		crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(101), RNG: r})
		for i, p := range pairs {
			most[i] = p.tried.Load()
		}
		cancel()
		wg.Wait()
		if err := cl.Close(); err != nil {
			t.Fatal(err)
		}
		fs = crashed
		cl, acct, _ = openBank(t, fs, 3, 3)
		for _, s := range cl.Servers {
			doubts += s.InDoubt()
		}
		for i, p := range pairs { // everything can be written soon
			ctx, cancel := context.WithTimeout(context.Background(), testseed.Patience())
			if err := cl.DB.Update(ctx, func(t *txn.Txn) error { return transfer(t, acct, p.from, p.to, 1) }); err != nil {
				t.Fatalf("round %d, pair %d: %v", round, i, err)
			}
			cancel()
			if moved := movedBy(t, cl, acct, p, balance) - 1; moved < least[i] || moved > most[i] {
				t.Fatalf("round %d, pair %d: %d transfers, %d were told, %d tried", round, i, moved, least[i], most[i])
			} else {
				p.acked.Store(moved + 1)
				p.tried.Store(moved + 1)
			}
		}
		if sum, _, err := total(context.Background(), cl.DB, acct, 100); err != nil || sum != 100*balance {
			t.Fatalf("round %d: the sum is %d, want %d: %v", round, sum, 100*balance, err)
		}
		for _, s := range cl.Servers {
			if n := s.InDoubt(); n > 0 {
				t.Fatalf("round %d: %d transactions stay in doubt", round, n)
			}
			if err := s.Check(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("at least %d crashes, %d checkpoints, %d transactions in doubt afterwards", rounds, made, doubts)
	if checkpoints && made == 0 {
		t.Error("there was no checkpoint")
	}
}

// movedBy returns how many transfers between a pair the database has.
func movedBy(t *testing.T, cl *Cluster, acct *tables.Table, p *pair, balance int64) int64 {
	t.Helper()
	got, sum := accountsIn(t, cl, acct, []uint64{p.from, p.to})
	if sum != 2*balance {
		t.Fatalf("a transfer is half there: %v", got)
	}
	return got[p.to] - balance
}
