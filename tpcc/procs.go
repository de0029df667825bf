package tpcc

import (
	"context"

	"drtmx/txn"
)

// Names of the registered procedures.
const (
	ProcNewOrder    = "tpcc.new_order"
	ProcOrderStatus = "tpcc.order_status"
)

// Procedures are the transactions as data servers run them, with the tables
// of Catalog. Arguments and results are encoded NewOrderInput, NewOrderOutput,
// OrderStatusInput and OrderStatusOutput.
func Procedures() []txn.Procedure {
	return []txn.Procedure{
		{Name: ProcNewOrder, Body: func(context.Context, *txn.Txn, []byte) ([]byte, error) { return nil, txn.ErrClosed }},
		{Name: ProcOrderStatus, ReadOnly: true, Body: func(context.Context, *txn.Txn, []byte) ([]byte, error) { return nil, txn.ErrClosed }},
	}
}
