package server

import (
	"context"
	"testing"

	"drtmx/internal/wire"
	"drtmx/tables"
	"drtmx/txn"
)

// TestStopIsNoFailureOfTheProcedure: a procedure that ends because its server stops
// has not failed by itself. Its client is told that the server is not available, and
// tries again at the one that comes after it.
func TestStopIsNoFailureOfTheProcedure(t *testing.T) {
	var stop context.CancelFunc
	cat := bank(t)
	acct := cat.MustTable("account")
	cl, err := Embedded(t.Context(), EmbeddedConfig{Catalog: cat, Servers: 2, Procedures: []txn.Procedure{{
		Name: "read", Body: func(_ context.Context, x *txn.Txn, _ []byte) ([]byte, error) {
			for k := range uint64(4) { // some of them elsewhere
				if _, err := x.Get(acct, tables.Num(k)); err != nil {
					return nil, err
				}
				stop()
			}
			return nil, nil
		},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for k := range uint64(4) {
		row := acct.NewRow()
		row.SetInt(acct.Field("id"), int64(k))
		if err := cl.DB.Update(t.Context(), func(x *txn.Txn) error { return x.Insert(acct, tables.Num(k), row) }); err != nil {
			t.Fatal(err)
		}
	}
	s := cl.Servers[0]
	ctx, cancel := context.WithCancel(s.ctx)
	stop = cancel
	_, v := s.runElsewhere(ctx, s.parts[0], s.procs["read"], nil, wire.ID{Client: 4711, Seq: 1})
	if v.code != wire.Unavailable {
		t.Errorf("%+v, want code %d", v, wire.Unavailable)
	}
	// One that fails by itself has failed, whatever the server does.
	stop = func() {}
	if v := verdictOf(context.Canceled); v.code != wire.RolledBack {
		t.Errorf("%+v, want code %d", v, wire.RolledBack)
	}
}
