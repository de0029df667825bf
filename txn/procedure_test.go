package txn_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"drtmx/tables"
	"drtmx/txn"
)

var errSoldOut = &txn.ProcedureError{Procedure: "order", Code: 7, Text: "sold out"}

func failing(c *tables.Catalog) []txn.Procedure {
	wide := c.MustTable("wide")
	return []txn.Procedure{
		{Name: "order", Body: func(_ context.Context, x *txn.Txn, args []byte) ([]byte, error) {
			if len(args) > 0 { // leave the partition
				if err := x.Put(wide, tables.Num(boundary+5), wide.NewRow()); err != nil {
					return nil, err
				}
			}
			return nil, fmt.Errorf("item 5: %w", &txn.ProcedureError{Code: 7, Payload: []byte("left: 0"), Text: "sold out"})
		}},
		{Name: "missing", Body: func(_ context.Context, x *txn.Txn, _ []byte) ([]byte, error) {
			_, err := x.Get(wide, tables.Num(77))
			return nil, fmt.Errorf("item 77: %w", err)
		}},
		{Name: "plain", Body: func(context.Context, *txn.Txn, []byte) ([]byte, error) { return nil, errors.New("no reason") }},
		{Name: "long payload", Body: func(context.Context, *txn.Txn, []byte) ([]byte, error) {
			return nil, &txn.ProcedureError{Code: 9, Payload: make([]byte, 1<<20)}
		}},
	}
}

// TestProcedureErrorsKeepTheirType calls procedures that fail, within their
// partition and beyond it: code, payload and cause reach the caller.
func TestProcedureErrorsKeepTheirType(t *testing.T) {
	r := newRig(t, 2, txn.Config{}, failing)
	for _, args := range [][]byte{nil, []byte("elsewhere")} {
		_, err := r.DB.Call(t.Context(), 0, "order", args)
		var typed *txn.ProcedureError
		if !errors.Is(err, errSoldOut) || !errors.As(err, &typed) || !bytes.Equal(typed.Payload, []byte("left: 0")) || typed.Code != 7 {
			t.Errorf("order(%q): %#v", args, err)
		}
		if errors.Is(err, &txn.ProcedureError{Procedure: "other", Code: 7}) || errors.Is(err, &txn.ProcedureError{Procedure: "order", Code: 8}) {
			t.Errorf("order(%q): %v matches errors of others", args, err)
		}
	}
	if _, err := r.DB.Call(t.Context(), 0, "missing", nil); !errors.Is(err, txn.ErrNotFound) || errors.Is(err, errSoldOut) {
		t.Errorf("missing: %v", err)
	}
	_, err := r.DB.Call(t.Context(), 0, "plain", nil)
	var typed *txn.ProcedureError
	if !errors.As(err, &typed) || typed.Code != 0 || typed.Text != "no reason" || errors.Is(err, errSoldOut) {
		t.Errorf("plain: %v", err)
	}
	if _, err := r.DB.Call(t.Context(), 0, "long payload", nil); !errors.As(err, &typed) || typed.Code != 9 || typed.Payload != nil {
		t.Errorf("long payload: %.300v", err)
	}
}
