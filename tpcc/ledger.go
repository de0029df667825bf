package tpcc

import (
	"context"
	"errors"
	"fmt"

	"drtmx/internal/rng"
	"drtmx/txn"
)

// Outcome is a client's knowledge of what became of a transaction that it has begun.
type Outcome uint8

// Outcomes.
const (
	OutcomeCommitted  Outcome = iota // the commit was confirmed to the client
	OutcomeNotDone                   // the client got an error which guarantees that nothing was written
	OutcomeUnknown                   // the client got an error that leaves the outcome open, with an ID to ask for it
	OutcomeUnfinished                // the client ended before it got an answer
)

func (f Outcome) String() string {
	return [...]string{"committed", "refused", "unknown", "unfinished"}[f]
}

// LedgerEntry is an entry in the ledger of a client: one transaction, or one of the
// database transactions of a DELIVERY. Every transaction that writes has a stamp
// of its own, in H_DATE, O_ENTRY_D or OL_DELIVERY_D, so each row can be traced to
// the transaction that wrote it, even if its client got no answer.
type LedgerEntry struct {
	Type    Type
	Stamp   int64
	W, D    int64
	Amount  int64 // of a payment
	Outcome Outcome
	ID      txn.ID           // if the outcome is unknown
	Number  int64            // if committed: the payment's serial, the order's O_ID, the O_ID that an ORDER-STATUS showed
	Orders  [Districts]int64 // if committed: the orders that a delivery delivered
	From    int64            // districts of a delivery
	To      int64
}

// setOutcome sets the outcome that an error of the API implies. It returns the error if the
// API does not document it.
func (d *LedgerEntry) setOutcome(err error) error {
	var lost *txn.UnknownOutcome
	switch {
	case err == nil:
		d.Outcome = OutcomeCommitted
	case errors.As(err, &lost):
		d.Outcome, d.ID = OutcomeUnknown, lost.ID
	case errors.Is(err, ErrRolledBack), errors.Is(err, txn.ErrUnavailable), errors.Is(err, txn.ErrConflict),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, txn.ErrClosed), tooOld(err):
		d.Outcome = OutcomeNotDone
	default:
		return err
	}
	return nil
}

// tooOld reports whether a body ran for longer than its reads are good, such as beside a
// server that did not answer for so long. Any other limit is a fault of this package.
func tooOld(err error) bool {
	var e *txn.Error
	return errors.Is(err, txn.ErrTooLarge) && errors.As(err, &e) && e.Limit == "Config.BodyAge"
}

// LedgerClient is a client of the full mix that keeps a ledger. It is for one
// goroutine.
type LedgerClient struct {
	// Begin is called before a transaction that writes begins, and End after it, with
	// its outcome. The parts of a DELIVERY end one by one.
	Begin, End func(LedgerEntry)
	// Failed is called with each error, also of read-only transactions, except that
	// of an order that rolls back by the rules.
	Failed func(error)

	rnd    *rng.Stream
	inputs *Inputs
	info   LoadInfo
	stamp  int64

	no    NewOrderInput
	noOut NewOrderOutput
	pay   PaymentInput
	paid  PaymentOutput
	st    OrderStatusInput
	stOut OrderStatusOutput
	del   DeliveryInput
	delO  DeliveryOutput
	lev   StockLevelInput
	levO  StockLevelOutput
}

// NewLedgerClient returns client n of a seed. No two clients that ever write to
// the same database may have the same number.
func NewLedgerClient(seed, n uint64, info LoadInfo) *LedgerClient {
	root := rng.New(seed)
	own := root.SplitN(n)
	return &LedgerClient{
		Begin: func(LedgerEntry) {}, End: func(LedgerEntry) {}, Failed: func(error) {},
		rnd: own.Split("choices"), info: info, stamp: int64(n+1) << 32,
		inputs: NewInputs(own.Split("inputs"), info, info.RunConstants(root.Split("constants"))),
	}
}

// outcome calls setOutcome and Failed.
func (c *LedgerClient) outcome(d *LedgerEntry, err error) error {
	if err != nil && !errors.Is(err, ErrRolledBack) {
		c.Failed(err)
	}
	return d.setOutcome(err)
}

// Run runs one transaction of a mix with more deliveries and fewer reads than the
// workload's. It returns only errors that the API does not document.
func (c *LedgerClient) Run(ctx context.Context, t *Terminal) error {
	w := c.rnd.Range(1, c.info.Warehouses)
	c.stamp++
	switch p := c.rnd.Range(1, 100); {
	case p <= 40:
		return c.order(ctx, t, w)
	case p <= 80:
		return c.payment(ctx, t, w)
	case p <= 86:
		return c.orderStatus(ctx, t, w)
	case p <= 92:
		c.inputs.StockLevel(w, c.rnd.Range(1, Districts), &c.lev)
		return c.outcome(new(LedgerEntry), t.StockLevel(ctx, &c.lev, &c.levO))
	}
	return c.delivery(ctx, t, w)
}

func (c *LedgerClient) order(ctx context.Context, t *Terminal, w int64) error {
	c.inputs.NewOrder(w, &c.no)
	if c.rnd.Bool(0.2) && len(c.no.Lines) > 0 { // more remote ones than the workload's
		c.no.Lines[0].SupplyW = c.rnd.Range(1, c.info.Warehouses)
	}
	c.no.EntryD = c.stamp
	d := LedgerEntry{Type: NewOrder, Stamp: c.stamp, W: w, D: c.no.D, Outcome: OutcomeUnfinished}
	c.Begin(d)
	err := c.outcome(&d, t.NewOrder(ctx, &c.no, &c.noOut))
	d.Number = c.noOut.Order
	c.End(d)
	return err
}

func (c *LedgerClient) payment(ctx context.Context, t *Terminal, w int64) error {
	c.inputs.Payment(w, &c.pay)
	c.pay.Date = c.stamp
	d := LedgerEntry{Type: Payment, Stamp: c.stamp, W: w, D: c.pay.D, Amount: c.pay.Amount, Outcome: OutcomeUnfinished}
	c.Begin(d)
	err := c.outcome(&d, t.Payment(ctx, &c.pay, &c.paid))
	d.Number = c.paid.Serial
	c.End(d)
	return err
}

// orderStatus has an entry in the ledger if it showed an order: a client
// that has seen an order may rely on it as much as the one that placed it.
func (c *LedgerClient) orderStatus(ctx context.Context, t *Terminal, w int64) error {
	c.inputs.OrderStatus(w, &c.st)
	d := LedgerEntry{Type: OrderStatus, Stamp: c.stamp, W: c.st.W, D: c.st.D}
	if err := c.outcome(&d, t.OrderStatus(ctx, &c.st, &c.stOut)); err != nil || d.Outcome != OutcomeCommitted {
		return err
	}
	if d.Number = c.stOut.Order; d.Number > c.info.Scale.Customers { // not one of the load
		c.End(d)
	}
	return nil
}

// delivery is several entries: those before an error are committed, the next one has
// the outcome that the error implies, and the others never began.
func (c *LedgerClient) delivery(ctx context.Context, t *Terminal, w int64) error {
	c.inputs.Delivery(w, &c.del)
	c.del.Date = c.stamp
	d := LedgerEntry{Type: Delivery, Stamp: c.stamp, W: w, Outcome: OutcomeUnfinished, From: 1, To: Districts}
	c.Begin(d)
	failure := t.Delivery(ctx, &c.del, &c.delO)
	d.Orders, d.Outcome, d.To = c.delO.Orders, OutcomeCommitted, int64(c.delO.Done)
	c.End(d)
	if failure == nil {
		return nil
	}
	d = LedgerEntry{Type: Delivery, Stamp: c.stamp, W: w, Outcome: OutcomeUnfinished, From: d.To + 1, To: min(d.To+int64(t.cfg.DeliveryBatch), Districts)}
	err := c.outcome(&d, failure)
	c.End(d)
	return err
}

// LedgerFault is a difference between a ledger and the database.
type LedgerFault struct {
	Kind string // one of the kinds of faults
	Text string
}

func (f LedgerFault) String() string { return f.Kind + ": " + f.Text }

// Kinds of faults.
const (
	LedgerLost    = "lost"    // confirmed to a client, and not in the database
	LedgerDoubled = "doubled" // in the database more than once
	LedgerWrong   = "wrong"   // in the database, but other than confirmed, or incomplete
	LedgerPhantom = "phantom" // in the database, but refused or never requested
)

// LedgerReport is the result of a comparison of ledgers with the database.
type LedgerReport struct {
	// Counts are the numbers of entries by type and outcome, such as "PAYMENT committed".
	Counts map[string]int
	Faults []LedgerFault
}

// Count returns the number of faults of a kind.
func (r *LedgerReport) Count(kind string) (n int) {
	for _, f := range r.Faults {
		if f.Kind == kind {
			n++
		}
	}
	return n
}

func (r *LedgerReport) fault(kind, format string, args ...any) {
	r.Faults = append(r.Faults, LedgerFault{kind, fmt.Sprintf(format, args...)})
}
