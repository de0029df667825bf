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
	// ErrQueueFull reports a DELIVERY that was not accepted: as many as the
	// queue holds wait already.
	ErrQueueFull = errors.New("tpcc: delivery queue is full")
	// ErrQueueClosed reports a DELIVERY submitted after Close.
	ErrQueueClosed = errors.New("tpcc: delivery queue is closed")
)

// DefaultDeliveryQueue is how many DELIVERYs may wait unless said otherwise.
// At the specification's pace a terminal submits one in some minutes; more
// than a few waiting means that deliveries do not keep up.
const DefaultDeliveryQueue = 64

// DeliveryQueueConfig describes a DeliveryQueue. The zero value will do.
type DeliveryQueueConfig struct {
	Size int // DELIVERYs that may wait; 0: DefaultDeliveryQueue
	// Log is the result file of clause 2.7.2.2: it gets a DeliveryRecord as
	// one line of JSON for each DELIVERY that was executed, in one Write. Nil:
	// none.
	Log io.Writer
	// Settled, if set, is told of each as well, by one goroutine at a time.
	Settled func(DeliveryRecord)
}

// DeliveryRecord is what became of one deferred DELIVERY (clause 2.7.2.2).
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
	Error     string           `json:"error,omitempty"` // what ended it before all districts were settled
}

// DeliveryStats count what a queue did. All fields only grow.
type DeliveryStats struct {
	Submitted uint64 // accepted DELIVERYs
	Refused   uint64 // for ErrQueueFull
	Finished  uint64 // executed, failed ones included
	Failed    uint64 // ended with an error before all districts were settled
	Delivered uint64 // orders
	Skipped   uint64 // districts without an undelivered order
	// WithSkips is the number of DELIVERYs that skipped some district. More
	// than one in a hundred has to be reported (clause 2.7.4.2).
	WithSkips uint64
}

// DeliveryQueue defers DELIVERYs (clause 2.7.2): terminals submit and go on,
// workers execute them in the order they were submitted. Submit, Close and
// Stats are safe for concurrent use, and so is Run with a Terminal for each.
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

// Submit queues a DELIVERY. It does not wait: ErrQueueFull if there is no
// room, ErrQueueClosed, ErrInput.
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

// Close ends submission: Run returns when what is queued has been executed.
// It may be called again.
func (q *DeliveryQueue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.mu.closed {
		q.mu.closed = true
		close(q.queue)
	}
}

// Len is how many DELIVERYs wait.
func (q *DeliveryQueue) Len() int { return len(q.queue) }

// Stats is a snapshot.
func (q *DeliveryQueue) Stats() DeliveryStats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.stats
}

// Run executes queued DELIVERYs on a terminal of its own until the queue is
// closed and empty, or ctx ends: then with ctx's error, and what waits is not
// executed. One that meets conflicts in every attempt is recorded as failed
// and no reason to stop; any other error, and one of the log, is.
func (q *DeliveryQueue) Run(ctx context.Context, t *Terminal) error {
	var out DeliveryOutput
	for {
		// A select alone would go on with a full queue for some time.
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
	if q.cfg.Settled != nil {
		q.cfg.Settled(r)
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
