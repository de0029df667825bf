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
func Procedures() []txn.Procedure {
	s, err := NewSchema(Catalog())
	if err != nil {
		panic(err) // it is the catalogue that NewSchema compares with
	}
	return []txn.Procedure{
		procedure(ProcNewOrder, false, func() callable {
			n := newNewOrder(s)
			n.in, n.out = &NewOrderInput{}, &NewOrderOutput{}
			return n
		}),
		procedure(ProcPayment, false, func() callable {
			p := newPayment(s)
			p.in, p.out = &PaymentInput{}, &PaymentOutput{}
			return p
		}),
		procedure(ProcOrderStatus, true, func() callable {
			return &orderStatus{s: s, in: &OrderStatusInput{}, out: &OrderStatusOutput{}}
		}),
		procedure(ProcDelivery, false, func() callable {
			v := newDelivery(s)
			v.in, v.out = &deliveryPart{}, &DeliveryOutput{}
			return v
		}),
		procedure(ProcStockLevel, true, func() callable {
			return &stockLevel{s: s, in: &StockLevelInput{}, out: &StockLevelOutput{}}
		}),
	}
}

// callable is a body with buffers for its input and output.
type callable interface {
	call(t operations, args []byte) ([]byte, error)
}

// procedure makes a procedure of bodies that keep their buffers from one call
// to the next.
func procedure(name string, readOnly bool, fresh func() callable) txn.Procedure {
	bodies := sync.Pool{New: func() any { return fresh() }}
	return txn.Procedure{
		Name: name, ReadOnly: readOnly,
		Body: func(_ context.Context, t *txn.Txn, args []byte) ([]byte, error) {
			b := bodies.Get().(callable)
			defer bodies.Put(b)
			return b.call(live{t}, args)
		},
	}
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

func (p *payment) call(t operations, args []byte) ([]byte, error) {
	if err := p.in.Decode(args); err != nil {
		return nil, err
	}
	if err := p.run(t); err != nil {
		return nil, err
	}
	return p.out.AppendTo(make([]byte, 0, resultBytes)), nil
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

func (v *delivery) call(t operations, args []byte) ([]byte, error) {
	if err := v.in.Decode(args); err != nil {
		return nil, err
	}
	if err := v.run(t); err != nil {
		return nil, err
	}
	return v.out.appendPart(nil, v.in.First, v.in.Last), nil
}

func (l *stockLevel) call(t operations, args []byte) ([]byte, error) {
	if err := l.in.Decode(args); err != nil {
		return nil, err
	}
	if err := l.run(t); err != nil {
		return nil, err
	}
	return l.out.AppendTo(nil), nil
}
