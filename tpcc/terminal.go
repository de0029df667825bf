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
	// Default is Procedure for transactions that write hot rows: NEW-ORDER
	// (D_NEXT_O_ID), PAYMENT (W_YTD, D_YTD) and DELIVERY (the oldest order). It
	// is Client for ORDER-STATUS. For STOCK-LEVEL it is Client first, then a
	// Snapshot: see TerminalConfig.StockLevelAttempts.
	Default Mode = iota
	// Client runs the body in the client: a transaction that writes is an Update, a
	// read-only one a View.
	Client
	// Procedure runs the body at its home server, by one Call. A DELIVERY takes
	// one Call for each of its database transactions.
	Procedure
)

func (m Mode) String() string { return [...]string{"default", "client", "procedure"}[m] }

// ParseMode is the inverse of String. Its error is ErrInput.
func ParseMode(s string) (Mode, error) {
	for m := Default; m <= Procedure; m++ {
		if s == m.String() {
			return m, nil
		}
	}
	return 0, fmt.Errorf("%w: mode %q, want default, client or procedure", ErrInput, s)
}

// TerminalConfig configures how a terminal runs its transactions. The zero
// value is valid.
type TerminalConfig struct {
	NewOrderMode    Mode
	PaymentMode     Mode
	OrderStatusMode Mode
	DeliveryMode    Mode
	StockLevelMode  Mode
	// DeliveryBatch is how many districts, 1 to 10, one database transaction
	// of a DELIVERY delivers for; 0: DefaultDeliveryBatch.
	DeliveryBatch int
	// StockLevelAttempts is the number of Views that writers may invalidate before a
	// STOCK-LEVEL in Default mode goes on as a Snapshot, which writers cannot abort;
	// 0: DefaultStockLevelAttempts.
	StockLevelAttempts int
}

// Defaults of TerminalConfig.
const (
	// DefaultDeliveryBatch is all districts: clause 2.7.1 leaves open how many
	// orders one database transaction delivers. At the home server a DELIVERY
	// is then one Call, not ten, and conflicts that would repeat all ten orders
	// are rare there. In Client mode, where NEW-ORDERs may commit between the
	// reads and the commit, a smaller batch repeats less.
	DefaultDeliveryBatch = Districts
	// DefaultStockLevelAttempts takes into account that several attempts of a View
	// take no longer than the wait of a Snapshot.
	DefaultStockLevelAttempts = 4
)

// TerminalStats are the counters of a terminal, in addition to SessionStats.
type TerminalStats struct {
	// StockLevelsEscalated counts the STOCK-LEVELs of which every View was
	// invalidated, and which went on as Snapshots.
	StockLevelsEscalated uint64
}

// Terminal runs TPC-C transactions in one session. It keeps their buffers, so
// that a transaction in steady state allocates little. It is for one goroutine.
type Terminal struct {
	db    *txn.DB
	sess  *txn.Session
	cfg   TerminalConfig
	stats TerminalStats
	args  []byte
	part  deliveryPart

	newOrder    *newOrder
	payment     *payment
	orderStatus *orderStatus
	delivery    *delivery
	stockLevel  *stockLevel

	// Made once, to save a closure per transaction.
	newOrderBody, paymentBody, orderStatusBody, deliveryBody, stockLevelBody func(*txn.Txn) error
}

// NewTerminal returns a terminal that uses a session; the caller keeps
// ownership of the session and closes it. s is NewSchema(db.Catalog());
// terminals share it.
func NewTerminal(db *txn.DB, sess *txn.Session, s *Schema, c TerminalConfig) *Terminal {
	if c.DeliveryBatch <= 0 {
		c.DeliveryBatch = DefaultDeliveryBatch
	}
	if c.StockLevelAttempts <= 0 {
		c.StockLevelAttempts = DefaultStockLevelAttempts
	}
	t := &Terminal{
		db: db, sess: sess, cfg: c, newOrder: newNewOrder(s), payment: newPayment(s),
		orderStatus: &orderStatus{s: s}, delivery: newDelivery(s), stockLevel: &stockLevel{s: s},
	}
	t.newOrderBody = func(tx *txn.Txn) error { return t.newOrder.run(live{tx}) }
	t.paymentBody = func(tx *txn.Txn) error { return t.payment.run(live{tx}) }
	t.orderStatusBody = func(tx *txn.Txn) error { return t.orderStatus.run(live{tx}) }
	t.deliveryBody = func(tx *txn.Txn) error { return t.delivery.run(live{tx}) }
	t.stockLevelBody = func(tx *txn.Txn) error { return t.stockLevel.run(live{tx}) }
	return t
}

// Stats returns a snapshot of the terminal's counters. Only the terminal's goroutine
// may call it.
func (t *Terminal) Stats() TerminalStats { return t.stats }

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
	return out.failed(t.call(ctx, in.W, ProcNewOrder, in, out))
}

// failed fills in out if err is ErrRolledBack, and returns err.
func (out *NewOrderOutput) failed(err error) error {
	var failed *txn.ProcedureError
	if errors.Is(err, ErrRolledBack) && errors.As(err, &failed) {
		if bad := out.takeRolledBack(failed.Payload); bad != nil {
			return bad
		}
	}
	return err
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
	return t.call(ctx, in.W, ProcOrderStatus, in, out)
}

// Payment runs one PAYMENT and fills in out, whose memory it reuses. It
// returns ErrNoCustomer, which a terminal that uses Inputs never meets,
// ErrInput, or errors of package txn.
func (t *Terminal) Payment(ctx context.Context, in *PaymentInput, out *PaymentOutput) error {
	if err := in.check(); err != nil {
		return err
	}
	if t.cfg.PaymentMode == Client {
		t.payment.in, t.payment.out = in, out
		return t.sess.Update(ctx, t.paymentBody)
	}
	return t.call(ctx, in.W, ProcPayment, in, out)
}

// Delivery runs one DELIVERY at once; a DeliveryQueue defers it as clause 2.7.2
// requires. It takes one database transaction for each DeliveryBatch districts.
// If one of them fails, those before it stay committed, out.Done is the number
// of their districts, and the error is that of the failed one: ErrInput, or an
// error of package txn.
func (t *Terminal) Delivery(ctx context.Context, in *DeliveryInput, out *DeliveryOutput) error {
	*out = DeliveryOutput{}
	if err := in.check(); err != nil {
		return err
	}
	for out.Done < Districts {
		last := min(out.Done+t.cfg.DeliveryBatch, Districts)
		t.part = deliveryPart{*in, int64(out.Done) + 1, int64(last)}
		if err := t.deliverPart(ctx, out); err != nil {
			clear(out.Orders[out.Done:]) // set by the attempt that failed
			return err
		}
		out.Done = last
	}
	return nil
}

func (t *Terminal) deliverPart(ctx context.Context, out *DeliveryOutput) error {
	if t.cfg.DeliveryMode == Client {
		t.delivery.in, t.delivery.out = &t.part, out
		return t.sess.Update(ctx, t.deliveryBody)
	}
	t.args = t.part.AppendTo(t.args[:0])
	result, err := t.sess.Call(ctx, t.home(t.part.W), ProcDelivery, t.args)
	if err != nil {
		return err
	}
	return out.decodePart(result, t.part.First, t.part.Last)
}

// StockLevel runs one STOCK-LEVEL. Errors are ErrInput, or of package txn.
//
// A View of some 200 STOCK rows, the district and the end of its order lines commits
// only if no transaction writes any of them between its first read and its
// validation. Every NEW-ORDER and PAYMENT of the district writes one of them, and any
// NEW-ORDER of the warehouse may. Under enough load each attempt is therefore likely
// to be invalidated, however often it is repeated. In Default mode StockLevelAttempts
// bounds the number of invalidated Views. Then the same body runs in a Snapshot,
// which takes longer to begin and always ends. If the servers keep no versions, or
// not for long enough, the body runs at its home server, where it occupies the
// executor and so blocks all writers. Attempts that meet locks of prepared
// distributed transactions do not count. All these ways are serializable.
func (t *Terminal) StockLevel(ctx context.Context, in *StockLevelInput, out *StockLevelOutput) error {
	if err := in.check(); err != nil {
		return err
	}
	t.stockLevel.in, t.stockLevel.out = in, out
	switch t.cfg.StockLevelMode {
	case Client:
		return t.sess.View(ctx, t.stockLevelBody)
	case Default:
		err := t.sess.TryView(ctx, t.cfg.StockLevelAttempts, t.stockLevelBody)
		if !errors.Is(err, txn.ErrConflict) {
			return err
		}
		t.stats.StockLevelsEscalated++
		if err := t.sess.Snapshot(ctx, t.stockLevelBody); !errors.Is(err, txn.ErrSnapshotTooOld) {
			return err
		}
	}
	return t.call(ctx, in.W, ProcStockLevel, in, out)
}

// call runs a procedure at the home server of a warehouse.
func (t *Terminal) call(ctx context.Context, w int64, proc string, in interface{ AppendTo(b []byte) []byte }, out interface{ Decode(b []byte) error }) error {
	t.args = in.AppendTo(t.args[:0])
	result, err := t.sess.Call(ctx, t.home(w), proc, t.args)
	if err != nil {
		return err
	}
	return out.Decode(result)
}

// home returns the partition of a warehouse.
func (t *Terminal) home(w int64) txn.Home {
	return must(t.db.Home(t.newOrder.s.warehouse, must(WarehouseKey(w))))
}
