package tpcc

import (
	"context"
	"errors"
	"fmt"

	"drtmx/txn"
)

// Mode says where the body of a transaction runs.
type Mode uint8

// Modes.
const (
	// Default is Procedure for NEW-ORDER, whose district row is hot, and
	// Client for ORDER-STATUS.
	Default Mode = iota
	// Client runs it in the client: NEW-ORDER as an Update, ORDER-STATUS as a
	// View, which reads by one-sided READs.
	Client
	// Procedure runs it at its home server, by one Call.
	Procedure
)

func (m Mode) String() string { return [...]string{"default", "client", "procedure"}[m] }

// ParseMode is the inverse of String.
func ParseMode(s string) (Mode, error) {
	for m := Default; m <= Procedure; m++ {
		if s == m.String() {
			return m, nil
		}
	}
	return 0, fmt.Errorf("%w: mode %q, want default, client or procedure", ErrInput, s)
}

// TerminalConfig says how a terminal runs its transactions.
type TerminalConfig struct {
	NewOrderMode    Mode
	OrderStatusMode Mode
}

// Terminal runs TPC-C transactions in one session. It keeps their buffers, so
// that a transaction in steady state allocates little. One goroutine.
type Terminal struct {
	db   *txn.DB
	sess *txn.Session
	cfg  TerminalConfig
	args []byte

	newOrder        *newOrder
	orderStatus     *orderStatus
	newOrderBody    func(*txn.Txn) error // made once: a closure per transaction would be garbage
	orderStatusBody func(*txn.Txn) error
}

// NewTerminal makes a terminal of a session, which remains the caller's to
// close. s is NewSchema(db.Catalog()) and is shared by terminals.
func NewTerminal(db *txn.DB, sess *txn.Session, s *Schema, c TerminalConfig) *Terminal {
	t := &Terminal{db: db, sess: sess, cfg: c, newOrder: newNewOrder(s), orderStatus: &orderStatus{s: s}}
	t.newOrderBody = func(tx *txn.Txn) error { return t.newOrder.run(live{tx}) }
	t.orderStatusBody = func(tx *txn.Txn) error { return t.orderStatus.run(live{tx}) }
	return t
}

// NewOrder runs one NEW-ORDER and fills in out, whose memory it reuses. It
// returns ErrRolledBack for an order with an unused item number; ErrInput for
// an input outside the bounds of clause 2.4.1; otherwise errors of package
// txn.
func (t *Terminal) NewOrder(ctx context.Context, in *NewOrderInput, out *NewOrderOutput) error {
	if err := in.check(); err != nil {
		return err
	}
	if t.cfg.NewOrderMode == Client {
		t.newOrder.in, t.newOrder.out = in, out
		return t.sess.Update(ctx, t.newOrderBody)
	}
	t.args = in.AppendTo(t.args[:0])
	result, err := t.sess.Call(ctx, t.home(in.W), ProcNewOrder, t.args)
	if err != nil {
		return out.failed(err)
	}
	return out.Decode(result)
}

// failed turns a procedure's error back into the body's, if it is ErrRolledBack.
func (out *NewOrderOutput) failed(err error) error {
	var failed *txn.ProcedureError
	if !errors.As(err, &failed) {
		return err
	}
	r := parseRolledBack(failed.Text)
	if r == nil {
		return err
	}
	out.Order = r.order
	out.Last = append(out.Last[:0], r.last...)
	out.Credit = append(out.Credit[:0], r.credit...)
	out.resize(0)
	return r
}

// OrderStatus runs one ORDER-STATUS and fills in out, whose memory it reuses.
// It returns ErrNoCustomer, which a terminal that uses Inputs never meets,
// ErrInput, or errors of package txn.
func (t *Terminal) OrderStatus(ctx context.Context, in *OrderStatusInput, out *OrderStatusOutput) error {
	if err := in.check(); err != nil {
		return err
	}
	if t.cfg.OrderStatusMode != Procedure {
		t.orderStatus.in, t.orderStatus.out = in, out
		return t.sess.View(ctx, t.orderStatusBody)
	}
	t.args = in.AppendTo(t.args[:0])
	result, err := t.sess.Call(ctx, t.home(in.W), ProcOrderStatus, t.args)
	if err != nil {
		return err
	}
	return out.Decode(result)
}

// home is the partition of a warehouse.
func (t *Terminal) home(w int64) txn.Home {
	return t.db.Home(t.newOrder.s.warehouse, must(WarehouseKey(w)))
}
