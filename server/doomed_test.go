package server

import (
	"context"
	"testing"

	"drtmx/tables"
	"drtmx/txn"
)

// TestErrorOfAnInconsistentAttempt: an attempt that has read a row which another
// client changed later, and then met an error that only that change explains, is
// made again. The caller never gets the error.
func TestErrorOfAnInconsistentAttempt(t *testing.T) {
	cl, acct, _ := startBank(t, 2)
	putAccounts(t, cl.DB, acct, 20, 0)
	other, err := cl.DB.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	taken := func(id uint64) tables.Row {
		row := acct.NewRow()
		row.SetInt(acct.Field("id"), int64(id))
		return row
	}
	for id := range uint64(20) { // keys of all partitions
		attempts := 0
		err := cl.DB.Update(t.Context(), func(x *txn.Txn) error {
			attempts++
			row, err := x.Get(acct, tables.Num(id))
			if err != nil || row.Int(acct.Field("balance")) != 0 {
				return err // the other client was here
			}
			if attempts == 1 {
				if err := other.Update(context.WithoutCancel(t.Context()), func(y *txn.Txn) error {
					if err := addOne(acct, id)(y); err != nil {
						return err
					}
					return y.Insert(acct, tables.Num(100+id), taken(100+id))
				}); err != nil {
					t.Fatal(err)
				}
			}
			if err := x.Insert(acct, tables.Num(100+id), taken(100+id)); err != nil {
				return err
			}
			return x.Delete(acct, tables.Num(100+id)) // the row exists: taking the insert back tells so
		})
		if err != nil || attempts != 2 {
			t.Errorf("account %d: %v after %d attempts, want 2 attempts", id, err, attempts)
		}
	}
}
