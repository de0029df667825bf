package server

import (
	"context"
	"errors"
	"testing"

	"drtmx/internal/twophase"
	"drtmx/tables"
	"drtmx/txn"
)

// moveBetween transfers money between accounts of both servers, home first.
func moveBetween(t *testing.T, cl *Cluster, acct *tables.Table) error {
	t.Helper()
	accounts := make([]uint64, 2)
	for id := uint64(20); id > 0; id-- {
		accounts[HomeOf(cl.DB, acct, tables.Num(id-1))] = id - 1
	}
	return cl.DB.Update(context.Background(), func(tx *txn.Txn) error { return transfer(tx, acct, accounts[0], accounts[1], 1) })
}

// TestGonePartyMeansAbort: a transaction that the machine decides against,
// because it knows that a party's memory is lost, is not told committed,
// although no server has refused it.
func TestGonePartyMeansAbort(t *testing.T) {
	cl, acct, _ := startBank(t, 2)
	putAccounts(t, cl.DB, acct, 20, 100)
	if err := moveBetween(t, cl, acct); err != nil {
		t.Fatal(err)
	}
	for _, at := range [][2]int{{0, 1}, {1, 0}} {
		(&batch{driver: &cl.Servers[at[0]].driver}).gone(cl.Servers[at[1]].parts.party(cl.Servers[at[1]].parts.of[at[1]]))
	}
	if err := moveBetween(t, cl, acct); !errors.Is(err, txn.ErrUnavailable) {
		t.Errorf("told %v, want %v", err, txn.ErrUnavailable)
	}
	if sum, _, err := total(context.Background(), cl.DB, acct, 20); err != nil || sum != 2000 {
		t.Errorf("sum %d: %v", sum, err)
	}
}

// TestOldConnectionProvesNothing: an idle connection to an earlier life of a
// server does not prove that the present one is gone.
func TestOldConnectionProvesNothing(t *testing.T) {
	cl, acct, _ := startBank(t, 2)
	putAccounts(t, cl.DB, acct, 20, 100)
	for i, s := range cl.Servers {
		other := cl.Servers[1-i]
		p := s.peers[1-i]
		l, err := p.link(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		l.incarnation ^= 2
		l.release()
		life := other.parts.party(other.parts.here[0])
		if err := p.exchange([]twophase.Message{{Kind: twophase.Settled, From: s.parts.party(s.parts.here[0]), To: life}}); err != nil {
			t.Fatal(err)
		}
		if l, err = p.link(context.Background()); err != nil {
			t.Fatal(err)
		}
		l.drop() // and with it the old one, if that is still there
	}
	if err := moveBetween(t, cl, acct); err != nil {
		t.Errorf("all servers live: %v", err)
	}
}
