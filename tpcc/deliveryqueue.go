package tpcc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"drtmx/txn"
)

// Errors of a DeliveryQueue.
var (
	// ErrQueueFull reports a DELIVERY that the queue did not accept because it
	// is full.
	ErrQueueFull = errors.New("tpcc: delivery queue is full")
	// ErrQueueClosed reports a DELIVERY submitted after Close.
	ErrQueueClosed = errors.New("tpcc: delivery queue is closed")
)

// DefaultDeliveryQueue is the default number of DELIVERYs that may wait. At the
// specification's pace a terminal submits one every few minutes. If more than a few
// wait, deliveries do not keep up.
const DefaultDeliveryQueue = 64

// DeliveryQueueConfig configures a DeliveryQueue. The zero value is valid.
type DeliveryQueueConfig struct {
	Size int // DELIVERYs that may wait; 0: DefaultDeliveryQueue
	// Log is the result file of clause 2.7.2.2. The queue writes one
	// DeliveryRecord, as one line of JSON in one Write, for each executed
	// DELIVERY. It may be nil.
	Log io.Writer
	// Done, if not nil, is called with each record, by one goroutine at a
	// time.
	Done func(DeliveryRecord)
}

// DeliveryRecord is the outcome of one deferred DELIVERY (clause 2.7.2.2).
type DeliveryRecord struct {
	W       int64 `json:"w"`
	Carrier int64 `json:"carrier"`
	// Queued, Started and Finished are when it was submitted, taken from the
	// queue, and completed.
	Queued   time.Time `json:"queued"`
	Started  time.Time `json:"started"`
	Finished time.Time `json:"finished"`
	// Orders are the O_IDs delivered, of districts 1 to 10; 0: none.
	Orders    [Districts]int64 `json:"orders"`
	Delivered int              `json:"delivered"`
	Skipped   int              `json:"skipped"`         // districts without an undelivered order
	Error     string           `json:"error,omitempty"` // the error that ended it before all districts were done
}

// DeliveryStats are the counters of a queue. All fields only grow.
type DeliveryStats struct {
	Submitted uint64 // accepted DELIVERYs
	Refused   uint64 // for ErrQueueFull
	Finished  uint64 // executed, failed ones included
	Failed    uint64 // ended with an error before all districts were done
	Delivered uint64 // orders
	Skipped   uint64 // districts without an undelivered order
	// WithSkips is the number of DELIVERYs that skipped some district. A share of
	// more than 1 % must be reported (clause 2.7.4.2).
	WithSkips uint64
}

// DeliveryQueue defers DELIVERYs (clause 2.7.2): terminals submit them and
// continue, and workers execute them in the order of submission. Submit, Close
// and Stats are safe for concurrent use, and so is Run if each call has its own
// Terminal.
type DeliveryQueue struct {
	cfg   DeliveryQueueConfig
	queue chan queuedDelivery

	mu struct {
		sync.Mutex
		closed bool
		stats  DeliveryStats
	}
}

type queuedDelivery struct {
	in DeliveryInput
	at time.Time
}

// NewDeliveryQueue makes an empty queue.
func NewDeliveryQueue(c DeliveryQueueConfig) *DeliveryQueue {
	if c.Size <= 0 {
		c.Size = DefaultDeliveryQueue
	}
	return &DeliveryQueue{cfg: c, queue: make(chan queuedDelivery, c.Size)}
}

// Submit queues a DELIVERY. It does not wait: it returns ErrQueueFull if there
// is no room, ErrQueueClosed after Close, or ErrInput.
func (q *DeliveryQueue) Submit(in DeliveryInput) error {
	if err := in.check(); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.closed {
		return ErrQueueClosed
	}
	select {
	case q.queue <- queuedDelivery{in, time.Now()}:
		q.mu.stats.Submitted++
		return nil
	default:
		q.mu.stats.Refused++
		return fmt.Errorf("%w: %d wait", ErrQueueFull, cap(q.queue))
	}
}

// Close ends submission: Run returns when all queued DELIVERYs have been
// executed. Close may be called more than once.
func (q *DeliveryQueue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.mu.closed {
		q.mu.closed = true
		close(q.queue)
	}
}

// Len returns the number of DELIVERYs that wait.
func (q *DeliveryQueue) Len() int { return len(q.queue) }

// Stats returns a snapshot of the counters.
func (q *DeliveryQueue) Stats() DeliveryStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.stats
}

// Run executes queued DELIVERYs on t, which no one else may use, until the
// queue is closed and empty. If ctx ends, Run returns its error and does not
// execute the DELIVERYs that still wait. A DELIVERY that meets conflicts in
// every attempt is recorded as failed, and Run continues. Any other error, and
// an error of the log, ends Run.
func (q *DeliveryQueue) Run(ctx context.Context, t *Terminal) error {
	var out DeliveryOutput
	for {
		// A select alone might continue with a full queue for some time.
		if err := ctx.Err(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case d, open := <-q.queue:
			if !open {
				return nil
			}
			started := time.Now()
			err := t.Delivery(ctx, &d.in, &out)
			if lerr := q.settle(&d, started, &out, err); lerr != nil {
				return lerr
			}
			if err != nil && !errors.Is(err, txn.ErrConflict) {
				return err
			}
		}
	}
}

// settle counts and records an executed DELIVERY.
func (q *DeliveryQueue) settle(d *queuedDelivery, started time.Time, out *DeliveryOutput, err error) error {
	r := DeliveryRecord{
		W: d.in.W, Carrier: d.in.Carrier, Queued: d.at, Started: started, Finished: time.Now(),
		Orders: out.Orders, Delivered: out.Delivered(), Skipped: out.Skipped(),
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	s := &q.mu.stats
	s.Finished++
	s.Delivered += uint64(r.Delivered)
	s.Skipped += uint64(r.Skipped)
	s.WithSkips += uint64(btoi(r.Skipped > 0))
	if err != nil {
		s.Failed++
		r.Error = err.Error()
	}
	if q.cfg.Done != nil {
		q.cfg.Done(r)
	}
	if q.cfg.Log == nil {
		return nil
	}
	line, err := json.Marshal(&r)
	if err == nil {
		_, err = q.cfg.Log.Write(append(line, '\n'))
	}
	if err != nil {
		return fmt.Errorf("tpcc: delivery log: %w", err)
	}
	return nil
}
