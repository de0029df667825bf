package tpcc

import (
	"context"
	"errors"
	"fmt"

	"drtmx/internal/rng"
	"drtmx/txn"
)

// ErrNotLoaded reports a database without a complete initial population.
var ErrNotLoaded = errors.New("tpcc: database is not loaded")

// LoadInfo has the parameters with which a database was loaded.
type LoadInfo struct {
	Warehouses int64
	Scale      Scale
	CLast      int64 // C-Load: the constant of NURand for C_LAST (clause 2.1.6.1)
	Seed       uint64
	LoadedAt   int64 // ns since 1970
}

// ReadLoadInfo reads the LoadInfo of a database. It returns ErrNotLoaded if no
// load was completed.
func ReadLoadInfo(ctx context.Context, db *txn.DB) (LoadInfo, error) {
	s, err := NewSchema(db.Catalog())
	if err != nil {
		return LoadInfo{}, err
	}
	v, err := dbViewers{db: db}.viewer(ctx)
	if err != nil {
		return LoadInfo{}, err
	}
	info, err := s.readLoadInfo(ctx, v)
	return info, errors.Join(err, v.close())
}

func (s *Schema) readLoadInfo(ctx context.Context, v viewer) (info LoadInfo, err error) {
	err = v.view(ctx, func(t operations) error {
		row, err := t.QueueGet(s.loadInfo, loadInfoKey).Row()
		if err != nil {
			return err
		}
		f := &s.li
		info = LoadInfo{
			Warehouses: row.Int(f.warehouses),
			Scale:      Scale{row.Int(f.items), row.Int(f.customers), row.Int(f.undelivered)},
			CLast:      row.Int(f.cLast), Seed: uint64(row.Int(f.seed)), LoadedAt: row.Int(f.loadedAt),
		}
		return nil
	})
	if errors.Is(err, txn.ErrNotFound) {
		err = ErrNotLoaded
	}
	if err != nil {
		return LoadInfo{}, fmt.Errorf("tpcc: load info: %w", err)
	}
	return info, nil
}

// RunConstants draws the constants of NURand for a run on the database. C-Run is as
// far from C-Load as clause 2.1.6.1 demands. All terminals of a run share the
// constants: s must be a stream that depends on the run alone.
func (i LoadInfo) RunConstants(s *rng.Stream) rng.Constants { return rng.RunConstants(s, i.CLast) }

// Inputs draws the inputs of one terminal's transactions. It does not allocate in
// steady state. It is for one goroutine.
type Inputs struct {
	rnd       *rng.Stream
	info      LoadInfo
	constants rng.Constants
}

// NewInputs makes a terminal's inputs. s is the terminal's own stream,
// constants are the run's.
func NewInputs(s *rng.Stream, info LoadInfo, constants rng.Constants) *Inputs {
	return &Inputs{rnd: s, info: info, constants: constants}
}

// NewOrder draws the input of a NEW-ORDER at home warehouse w (clause 2.4.1). One in
// a hundred ends with an unused item number and must be rolled back.
func (g *Inputs) NewOrder(w int64, in *NewOrderInput) {
	in.W, in.EntryD = w, 0
	in.D = g.rnd.Range(1, Districts)
	in.C = g.customer()
	n := g.rnd.Range(MinLines, MaxLines)
	rollback := g.rnd.Range(1, 100) == 1
	in.Lines = in.Lines[:0]
	for i := int64(1); i <= n; i++ {
		l := NewOrderLine{
			Item:    g.rnd.NURand(rng.AOLIID, 1, g.info.Scale.Items, g.constants.OLIID),
			SupplyW: w,
		}
		if rollback && i == n {
			l.Item = g.info.Scale.Items + 1
		}
		if g.rnd.Range(1, 100) == 1 {
			l.SupplyW = g.otherWarehouse(w)
		}
		l.Quantity = g.rnd.Range(1, 10)
		in.Lines = append(in.Lines, l)
	}
}

// OrderStatus draws the input of an ORDER-STATUS at home warehouse w (clause
// 2.6.1): 60 % of the customers by last name.
func (g *Inputs) OrderStatus(w int64, in *OrderStatusInput) {
	in.W = w
	in.D = g.rnd.Range(1, Districts)
	in.C, in.Last = g.customerOrLast(in.Last)
}

// Payment draws the input of a PAYMENT at home warehouse w (clause 2.5.1): 15 %
// for a customer of another warehouse, 60 % of the customers by last name.
func (g *Inputs) Payment(w int64, in *PaymentInput) {
	in.W, in.Date = w, 0
	in.D = g.rnd.Range(1, Districts)
	in.CW, in.CD = w, in.D
	if g.rnd.Range(1, 100) > 85 {
		in.CW, in.CD = g.otherWarehouse(w), g.rnd.Range(1, Districts)
	}
	in.C, in.Last = g.customerOrLast(in.Last)
	in.Amount = g.rnd.Range(MinPayment, MaxPayment)
}

// Delivery draws the input of a DELIVERY at home warehouse w (clause 2.7.1).
func (g *Inputs) Delivery(w int64, in *DeliveryInput) {
	*in = DeliveryInput{W: w, Carrier: g.rnd.Range(1, MaxCarrier)}
}

// StockLevel draws the input of a STOCK-LEVEL of a terminal at warehouse w,
// district d, which is the terminal's for the whole run (clause 2.8.1.1).
func (g *Inputs) StockLevel(w, d int64, in *StockLevelInput) {
	*in = StockLevelInput{W: w, D: d, Threshold: g.rnd.Range(MinThreshold, MaxThreshold)}
}

// customerOrLast draws, three times in five, a last name into last's memory,
// and else a C_ID (clauses 2.5.1.2 and 2.6.1.2).
func (g *Inputs) customerOrLast(last []byte) (int64, []byte) {
	last = last[:0]
	if g.rnd.Range(1, 100) <= 60 {
		return 0, LastName(last, g.rnd.NURand(rng.ACLast, 0, g.info.Scale.lastNames()-1, g.constants.CLast))
	}
	return g.customer(), last
}

// customer draws a C_ID.
func (g *Inputs) customer() int64 {
	return g.rnd.NURand(rng.ACID, 1, g.info.Scale.Customers, g.constants.CID)
}

// otherWarehouse draws uniformly from the warehouses other than w, or w if
// there is no other (clause 2.4.1.5).
func (g *Inputs) otherWarehouse(w int64) int64 {
	if g.info.Warehouses == 1 {
		return w
	}
	other := g.rnd.Range(1, g.info.Warehouses-1)
	if other >= w {
		other++
	}
	return other
}
