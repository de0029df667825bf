package tpcc

import (
	"context"
	"sync"

	"drtmx/txn"
)

// Names of the registered procedures.
const (
	ProcNewOrder    = "tpcc.new_order"
	ProcPayment     = "tpcc.payment"
	ProcOrderStatus = "tpcc.order_status"
	ProcDelivery    = "tpcc.delivery" // of one or more districts: see TerminalConfig.DeliveryBatch
	ProcStockLevel  = "tpcc.stock_level"
)

// Procedures returns the transactions as procedures of data servers, for a
// database of Catalog. Arguments and results are encoded inputs and outputs.
// Bodies may run concurrently.
func Procedures() []txn.Procedure { return StoredXStore.Procedures() }

// Procedures are those of Procedures for a database of the storage's Catalog.
func (st Storage) Procedures() []txn.Procedure {
	s, err := NewSchema(st.Catalog())
	if err != nil {
		panic(err) // it is the catalogue that NewSchema compares with
	}
	return []txn.Procedure{
		procedure(ProcNewOrder, false, func() *callable {
			n := newNewOrder(s)
			n.in, n.out = &NewOrderInput{}, &NewOrderOutput{}
			return &callable{n, n.in, n.out}
		}),
		procedure(ProcPayment, false, func() *callable {
			p := newPayment(s)
			p.in, p.out = &PaymentInput{}, &PaymentOutput{}
			return &callable{p, p.in, p.out}
		}),
		procedure(ProcOrderStatus, true, func() *callable {
			q := &orderStatus{s: s, in: &OrderStatusInput{}, out: &OrderStatusOutput{}}
			return &callable{q, q.in, q.out}
		}),
		procedure(ProcDelivery, false, func() *callable {
			v := newDelivery(s)
			v.in, v.out = &deliveryPart{}, &DeliveryOutput{}
			return &callable{v, v.in, v}
		}),
		procedure(ProcStockLevel, true, func() *callable {
			l := &stockLevel{s: s, in: &StockLevelInput{}, out: &StockLevelOutput{}}
			return &callable{l, l.in, l.out}
		}),
	}
}

// callable is a body with buffers for its input and output.
type callable struct {
	run interface{ run(t operations) error }
	in  interface{ Decode(b []byte) error }
	out interface{ AppendTo(b []byte) []byte }
}

// resultBytes is room for an encoded output.
const resultBytes = 1024

func (c *callable) call(t operations, args []byte) ([]byte, error) {
	if err := c.in.Decode(args); err != nil {
		return nil, err
	}
	if err := c.run.run(t); err != nil {
		return nil, err
	}
	return c.out.AppendTo(make([]byte, 0, resultBytes)), nil
}

// AppendTo appends the encoded output.
func (v *delivery) AppendTo(b []byte) []byte { return v.out.appendPart(b, v.in.First, v.in.Last) }

// procedure makes a procedure of bodies that keep their buffers from one call
// to the next.
func procedure(name string, readOnly bool, fresh func() *callable) txn.Procedure {
	bodies := sync.Pool{New: func() any { return fresh() }}
	return txn.Procedure{
		Name: name, ReadOnly: readOnly,
		Body: func(_ context.Context, t *txn.Txn, args []byte) ([]byte, error) {
			c := bodies.Get().(*callable)
			defer bodies.Put(c)
			return c.call(live{t}, args)
		},
	}
}
