package server

import (
	"context"
	"errors"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
	"drtmx/txn"
)

// cutConn delivers the first commit, by a connection of its own, and then says
// that the connection broke: after the context of the caller has ended.
type cutConn struct {
	rdma.Conn
	other rdma.Conn
	cut   *bool
}

func (c *cutConn) StartCall(ctx context.Context, req []byte) error {
	if op := wire.Op(req[0]); !*c.cut || op != wire.OpCommit && op != wire.OpCall {
		return c.Conn.StartCall(ctx, req)
	}
	*c.cut = false
	if _, err := rdma.Call(context.Background(), c.other, req, nil); err != nil {
		return err
	}
	<-ctx.Done()
	c.Conn.Close()
	return rdma.ErrPeerDown
}

// TestBrokenSendIsNoAbort: a connection breaks while a transaction is sent, and
// the caller's deadline passes at the same time. The server has the request, so
// the outcome is unknown to the caller, and not that nothing was sent.
func TestBrokenSendIsNoAbort(t *testing.T) {
	cl, acct, _ := startBank(t, 1)
	putAccounts(t, cl.DB, acct, 4, startBalance)
	net, cut := cl.Servers[0].cfg.Provider, false
	db, err := txn.Open(t.Context(), txn.Config{
		Servers: []string{cl.Servers[0].Addr()},
		Dial: func(ctx context.Context, addr string) (rdma.Conn, error) {
			c, err := net.Dial(ctx, addr)
			if err != nil {
				return nil, err
			}
			other, err := net.Dial(ctx, addr)
			return &cutConn{c, other, &cut}, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	body := func(x *txn.Txn) error { return deposit(x, acct, 2, 1) }
	calls := map[string]func(context.Context) error{
		"Update": func(ctx context.Context) error { return db.Update(ctx, body) },
		"Call": func(ctx context.Context) error {
			_, err := db.Call(ctx, 0, "transfer", transferArgs(1, 2, 5))
			return err
		},
	}
	balance := func() (n int64) {
		if err := db.View(t.Context(), func(x *txn.Txn) error {
			row, err := x.Get(acct, tables.Num(1))
			if err == nil {
				n = row.Int(acct.Field("balance"))
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for name, call := range calls {
		before := balance()
		cut = true
		var err error
		for patience := 100 * time.Millisecond; cut && patience < testseed.Patience(); patience *= 2 { // until it is sent in time
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			err = call(ctx)
			cancel()
		}
		if cut || balance() == before {
			t.Fatalf("%s: the request has not taken effect: the test tells nothing", name)
		}
		if !errors.Is(err, txn.ErrOutcomeUnknown) {
			t.Errorf("%s: it took effect, and the caller hears: %v", name, err)
		}
	}
}
