package exec

import (
	"context"
	"errors"

	"drtmx/internal/placement"
	"drtmx/rdma"
)

// round is the round that is being built or under way: one batch for each connection
// that takes part. It is empty between two rounds, so that no request of one that has
// failed is posted with the next.
type round struct {
	net     *network
	touched []*link // that take part
}

// join adds the batches of the connection to a server to the round being built.
func (r *round) join(ctx context.Context, server placement.Server) (*link, error) {
	l := r.net.links[server]
	if l == nil || l.pending.until != 0 {
		var err error
		if l, err = r.net.link(ctx, server); err != nil {
			return nil, err
		}
	}
	if !l.touched {
		r.net.use(l)
		l.touched = true
		l.done.Reset()
		l.next.Reset()
		r.touched = append(r.touched, l)
	}
	return l, nil
}

// exchange posts every link's next batch and waits for all: one round, or
// several if a batch is larger than the fabric takes at once.
func (r *round) exchange(ctx context.Context) error {
	l := r.touched[0]
	if n := len(l.next.WRs); len(r.touched) > 1 || n == 0 || n > rdma.MaxBatch {
		return r.exchangeMany(ctx)
	}
	if err := l.conn.Post(l.next); err != nil {
		return r.net.broken(ctx, l, err)
	}
	if err := l.conn.Wait(ctx, l.next); err != nil && !refused(err) {
		return r.net.gaveUp(ctx, l, l.next, err)
	}
	r.net.stats.Rounds++
	l.turn()
	return nil
}

// exchangeMany does the same as exchange over several connections, or with a large
// batch.
func (r *round) exchangeMany(ctx context.Context) error {
	for from, more := 0, true; more; from += rdma.MaxBatch {
		for i, l := range r.touched {
			if b := l.piece(from); len(b.WRs) > 0 {
				if err := l.conn.Post(b); err != nil {
					r.addPosted(r.touched[:i], from)
					return r.net.broken(ctx, l, err)
				}
			}
		}
		more = false
		for i, l := range r.touched {
			if b := l.piece(from); len(b.WRs) > 0 {
				if err := l.conn.Wait(ctx, b); err != nil && !refused(err) {
					r.addPosted(r.touched[i+1:], from)
					return r.net.gaveUp(ctx, l, b, err)
				}
				more = more || len(l.next.WRs) > from+rdma.MaxBatch
			}
		}
		r.net.stats.Rounds++
	}
	for _, l := range r.touched {
		l.turn()
	}
	return nil
}

// addPosted does the same as addPending for connections on which a round was posted
// but not waited for.
func (r *round) addPosted(links []*link, from int) {
	for _, l := range links {
		if b := l.piece(from); b.Len() > 0 {
			r.net.addPending(l, b)
		}
	}
}

// end empties the round.
func (r *round) end() {
	for _, l := range r.touched {
		l.touched = false
	}
	r.touched = r.touched[:0]
}

// refused reports whether err is the server's refusal of a single request of a batch.
// The operation that posted the request handles it, by the status; any other error
// ends the round.
func refused(err error) bool {
	return errors.Is(err, rdma.ErrAccess) || errors.Is(err, rdma.ErrUnsupported)
}

// turn ends a round: the batch that was posted becomes the one that is done.
func (l *link) turn() {
	l.done, l.next = l.next, l.done
	l.next.Reset()
}

// piece returns the batch to post, with the requests from the given one on. It shares
// the memory of l.next, so that completions are stored there.
func (l *link) piece(from int) *rdma.Batch {
	if from == 0 && len(l.next.WRs) <= rdma.MaxBatch {
		return l.next
	}
	return l.cut(from)
}

// cut does the same as piece for a batch that is larger than the fabric takes at
// once, and for the others of its round.
func (l *link) cut(from int) *rdma.Batch {
	all := l.next.WRs
	l.part.WRs = all[min(from, len(all)):min(from+rdma.MaxBatch, len(all))]
	return &l.part
}
