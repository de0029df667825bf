package tpcc

import (
	"context"
	"sync"

	"drtmx/txn"
)

// Names of the registered procedures.
const (
	ProcNewOrder    = "tpcc.new_order"
	ProcOrderStatus = "tpcc.order_status"
)

// Procedures are the transactions as data servers run them, for a database of
// Catalog. Arguments and results are encoded NewOrderInput, NewOrderOutput,
// OrderStatusInput and OrderStatusOutput. Bodies may run concurrently.
func Procedures() []txn.Procedure {
	s, err := NewSchema(Catalog())
	if err != nil {
		panic(err) // it is the catalogue that NewSchema compares with
	}
	// Bodies keep their buffers from one call to the next.
	newOrders := sync.Pool{New: func() any {
		n := newNewOrder(s)
		n.in, n.out = &NewOrderInput{}, &NewOrderOutput{}
		return n
	}}
	orderStatuses := sync.Pool{New: func() any {
		return &orderStatus{s: s, in: &OrderStatusInput{}, out: &OrderStatusOutput{}}
	}}
	return []txn.Procedure{{
		Name: ProcNewOrder,
		Body: func(_ context.Context, t *txn.Txn, args []byte) ([]byte, error) {
			n := newOrders.Get().(*newOrder)
			defer newOrders.Put(n)
			return n.call(live{t}, args)
		},
	}, {
		Name: ProcOrderStatus, ReadOnly: true,
		Body: func(_ context.Context, t *txn.Txn, args []byte) ([]byte, error) {
			q := orderStatuses.Get().(*orderStatus)
			defer orderStatuses.Put(q)
			return q.call(live{t}, args)
		},
	}}
}

// resultBytes is room for an encoded output.
const resultBytes = 1024

func (n *newOrder) call(t operations, args []byte) ([]byte, error) {
	if err := n.in.Decode(args); err != nil {
		return nil, err
	}
	if err := n.run(t); err != nil {
		return nil, err
	}
	return n.out.AppendTo(make([]byte, 0, resultBytes)), nil
}

func (q *orderStatus) call(t operations, args []byte) ([]byte, error) {
	if err := q.in.Decode(args); err != nil {
		return nil, err
	}
	if err := q.run(t); err != nil {
		return nil, err
	}
	return q.out.AppendTo(make([]byte, 0, resultBytes)), nil
}
