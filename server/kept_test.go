package server

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/testseed"
	"drtmx/internal/wire"
	"drtmx/tables"
	"drtmx/txn"
)

// The accounts of keptRig, at two servers.
const (
	nearAccount = 0 // at the home of the procedure
	farAccount  = 1
)

// keptRig is a cluster of two servers with a procedure "two", which moves 1 from
// the near account to the far one.
type keptRig struct {
	*testing.T
	cl          *Cluster
	acct, entry *tables.Table
	first       func() error // called by the first run of the body that gets so far
	balances    []int64      // of the far account, by run that gets so far
	entries     []int        // of the far account
	runs        atomic.Int64
}

func newKeptRig(t *testing.T) *keptRig {
	const most = 10
	cat := bank(t)
	g := &keptRig{T: t, acct: cat.MustTable("account"), entry: cat.MustTable("entry")}
	bal := g.acct.Field("balance")
	body := func(_ context.Context, x *txn.Txn, _ []byte) ([]byte, error) {
		all := x.QueueScan(g.entry.Primary(), tables.Num(farAccount<<32), tables.Num(farAccount<<32|9), 5)
		far, err := x.Get(g.acct, tables.Num(farAccount))
		if err != nil {
			return nil, err
		}
		list, err := all.Entries()
		if err != nil {
			return nil, err
		}
		near, err := x.Get(g.acct, tables.Num(nearAccount))
		if err != nil {
			return nil, err
		}
		g.balances, g.entries = append(g.balances, far.Int(bal)), append(g.entries, len(list))
		if len(g.balances) == most {
			return nil, errors.New("too many attempts")
		}
		from, to := near.Clone(), far.Clone()
		from.SetInt(bal, from.Int(bal)-1)
		to.SetInt(bal, to.Int(bal)+1)
		if err := errors.Join(x.Update(g.acct, tables.Num(nearAccount), from), x.Update(g.acct, tables.Num(farAccount), to)); err != nil {
			return nil, err
		}
		far.SetInt(bal, -1) // what a body does to its rows is its own affair
		for _, e := range list {
			clear(e.Row)
		}
		if g.runs.Add(1) == 1 {
			return nil, g.first()
		}
		return nil, nil
	}
	var err error
	g.cl, err = Embedded(t.Context(), EmbeddedConfig{Catalog: cat, Servers: 2, Procedures: []txn.Procedure{{Name: "two", Body: body}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, s := range g.cl.Servers {
			if err := s.Check(); err != nil {
				t.Error(err)
			}
		}
		g.cl.Close()
	})
	putAccounts(t, g.cl.DB, g.acct, 2, startBalance)
	if err := g.change(1); err != nil {
		t.Fatal(err)
	}
	return g
}

// change adds an entry to the far account, and 1 to accounts.
func (g *keptRig) change(entry uint64, accounts ...uint64) error {
	return g.cl.DB.Update(g.Context(), func(x *txn.Txn) error {
		for _, id := range accounts {
			if err := deposit(x, g.acct, id, id); err != nil {
				return err
			}
		}
		return x.Insert(g.entry, tables.Num(farAccount<<32|entry), g.entry.NewRow())
	})
}

// check compares what the runs have read at the far account, and the balances
// in the end.
func (g *keptRig) check(balances []int64, entries []int, near, far int64) {
	g.Helper()
	if !slices.Equal(g.balances, balances) || !slices.Equal(g.entries, entries) {
		g.Errorf("the attempts have read the balances %v, want %v, and %v entries, want %v", g.balances, balances, g.entries, entries)
	}
	if err := g.cl.DB.View(g.Context(), func(x *txn.Txn) error {
		for id, want := range []int64{near, far} {
			row, err := x.Get(g.acct, tables.Num(uint64(id)))
			if err != nil {
				return err
			}
			if got := row.Int(g.acct.Field("balance")); got != want {
				g.Errorf("account %d has %d, want %d", id, got, want)
			}
		}
		return nil
	}); err != nil {
		g.Fatal(err)
	}
}

// TestReadsElsewhereAreKept: a procedure that has lost at its home does not read
// again at the other server before it commits, so its home's rows are reserved for
// no longer than the commit takes. What it has kept is validated: if it has
// changed, the procedure loses, and reads anew from then on. What a body does to a
// row that it got does not show in its next attempt.
func TestReadsElsewhereAreKept(t *testing.T) {
	g := newKeptRig(t)
	g.first = func() error { return g.change(2, nearAccount, farAccount) }
	if _, err := g.cl.DB.Call(t.Context(), 0, "two", nil); err != nil {
		t.Fatalf("balances in the attempts %v: %v", g.balances, err)
	}
	g.check([]int64{startBalance, startBalance, startBalance + 1}, []int{1, 1, 2}, startBalance, startBalance+2)
}

// TestReadsElsewhereBesideALock: a procedure that meets a lock at its home reads at
// the other server before it waits, and commits nothing of what it makes of the
// row behind the lock.
func TestReadsElsewhereBesideALock(t *testing.T) {
	for _, changes := range []bool{true, false} {
		besideALock(t, changes)
	}
}

// besideALock says whether the other server changes, too.
func besideALock(t *testing.T, changes bool) {
	g := newKeptRig(t)
	row := g.acct.NewRow()
	row.SetInt(g.acct.Field("id"), nearAccount)
	row.SetInt(g.acct.Field("balance"), 500)
	prep, v := g.cl.Servers[0].parts.of[0].prepare(&wire.Part{Writes: []wire.Write{{
		Index: uint16(g.acct.Primary().ID), Op: wire.Update, Key: index.Num(nearAccount), Row: row,
	}}})
	if !v.ok() {
		t.Fatal(v)
	}
	g.first = func() error {
		var err error
		if changes {
			err = g.change(2, farAccount)
		}
		prep.decide(true, prep.vote)
		return err
	}
	ended := make(chan error, 1)
	go func() {
		_, err := g.cl.DB.Call(t.Context(), 0, "two", nil)
		ended <- err
	}()
	for end := time.Now().Add(testseed.Patience()); g.runs.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Error("beside a lock the body never comes to its end")
			g.runs.Store(1)
			prep.decide(true, prep.vote)
		}
	}
	if err := <-ended; err != nil {
		t.Fatalf("balances in the attempts %v: %v", g.balances, err)
	}
	if changes {
		g.check([]int64{startBalance, startBalance, startBalance + 1}, []int{1, 1, 2}, 499, startBalance+2)
	} else {
		g.check([]int64{startBalance, startBalance}, []int{1, 1}, 499, startBalance+1)
	}
}
